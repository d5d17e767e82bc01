#pragma once
// `isthmus eval`: how well a trained model predicts text.

#include <filesystem>
#include <string>
#include <vector>

namespace isthmus::app {

struct EvalRequest {
  std::filesystem::path model;
  std::filesystem::path data;  ///< all of it; empty: the run's held-out part, as the run evaluates it
  std::filesystem::path out;   ///< file that gets the figures as JSON; may be empty
  bool json = false;
  std::vector<std::string> assignments;
};

/// Returns the exit status; throws Error(config) or Error(data).
[[nodiscard]] int run_eval(const EvalRequest& request);

}  // namespace isthmus::app
