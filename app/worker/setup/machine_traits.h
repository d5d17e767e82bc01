#pragma once
// The traits by which two machines compute the same bits in training.

#include <string>

#include "run/audit/audit_lines.h"
#include "worker/setup/model_setup.h"

namespace isthmus::app {

/// Names of traits that an audit uses.
inline constexpr const char *data_trait = "data", *threads_trait = "threads",
                            *deterministic_trait = "deterministic";  ///< of a GPU

[[nodiscard]] MachineTraits machine_traits(const Experiment& experiment, const ModelSetup& setup,
                                           const std::string& build);

}  // namespace isthmus::app
