#pragma once
// `isthmus observe`: follows a live run from outside, evaluates its global parameters on this machine, and
// keeps a folder with them up to date.

#include <cstdint>
#include <filesystem>
#include <string>

#include "run/experiment/experiment.h"

namespace isthmus::app {

struct ObserveRequest {
  Experiment experiment = {};
  std::string name = {};
  std::filesystem::path out = {};  ///< folder in Hugging Face's layout, replaced as a whole; empty: none
  std::filesystem::path parameters = {};  ///< safetensors file for the global parameters; empty: none
  std::int64_t every = 0;                 ///< steps between evaluations; 0: run.eval_every
  bool json = false;                      ///< with `once`: print the evaluation as JSON
  bool once = false;                      ///< copy the state, evaluate, leave
  std::string build = {};                 ///< of this binary
};

/// Without the run's data on this machine it does not evaluate. Exit status: 0 when the run has ended (with
/// `once`: when the state was evaluated), 130 or 143 after a signal, which does not affect the run. Throws
/// Error if it cannot follow, and Error(divergence) if it ends with other parameters than the run.
[[nodiscard]] int run_observe(ObserveRequest request);

}  // namespace isthmus::app
