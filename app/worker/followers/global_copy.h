#pragma once
// Copies a live run's global parameters once, as `isthmus observe` does, over the run's own connections: for
// `export`, `eval` and `sample` on a machine without a checkpoint.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/trainer/parameter_table.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

struct GlobalCopy {
  std::vector<float> parameters;
  std::uint64_t step = 0;  ///< by this step the rounds in the parameters are due
  bool ended = false;      ///< the run has ended meanwhile: the parameters are its result
};

/// Joins as observer `name`, copies, and leaves. `experiment` has the coordinator's address and this
/// process's identity (take_replica_name); `tokenizer` is its fingerprint. nullopt if the run ended before
/// its state was here. Throws Error(config) if the coordinator refuses, Error(network) if it does not answer
/// or if no state arrives for a minute and the time that the largest fragment takes at 10 Mbit/s.
[[nodiscard]] std::optional<GlobalCopy> copy_global_parameters(Experiment experiment,
                                                               const trainer::ParameterTable& table,
                                                               const Digest& tokenizer,
                                                               const std::string& name,
                                                               const std::string& build);

}  // namespace isthmus::app
