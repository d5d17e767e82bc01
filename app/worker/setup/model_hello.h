#pragma once
// The first message of a process that knows the run's model: a trainer or an observer.

#include <string>

#include "isthmus/outer_sync/protocol/messages/joining.h"
#include "isthmus/trainer/parameter_table.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

/// As a trainer. `build`: of this binary. `tokenizer`: its fingerprint.
[[nodiscard]] outer_sync::protocol::Hello model_hello(Experiment& experiment,
                                                      const trainer::ParameterTable& table,
                                                      const Digest& tokenizer, const std::string& name,
                                                      const std::string& build);

}  // namespace isthmus::app
