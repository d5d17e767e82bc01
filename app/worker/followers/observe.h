#pragma once
// `isthmus observe`: follows a live run from outside and evaluates its global parameters on this machine.

#include <filesystem>
#include <string>

#include "run/experiment/experiment.h"

namespace isthmus::app {

struct ObserveRequest {
  Experiment experiment;
  std::string name;
  std::filesystem::path out;  ///< safetensors file for the newest global parameters; empty for none
  bool json = false;          ///< with `once`: print the evaluation as JSON
  bool once = false;          ///< copy the state, evaluate, leave
  std::string build;          ///< of this binary
};

/// Exit status: 0 when the run has ended (with `once`: when the state was evaluated), 130 or 143 after a
/// signal, which does not affect the run. Throws Error if it cannot follow, and Error(divergence) if it ends
/// with other parameters than the run.
[[nodiscard]] int run_observe(ObserveRequest request);

}  // namespace isthmus::app
