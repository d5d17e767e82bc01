#pragma once
// `isthmus eval`: how well a trained model predicts text.

#include <filesystem>
#include <string>
#include <vector>

namespace isthmus::app {

struct EvalRequest {
  std::filesystem::path model;
  std::filesystem::path data;  ///< text to evaluate; empty: the held-out part, as in the run
  std::filesystem::path out;   ///< file for the figures as JSON; may be empty
  bool json = false;
  std::vector<std::string> assignments;
  std::string build = {};  ///< of this binary
};

/// Returns the exit status; throws Error(config) or Error(data).
[[nodiscard]] int run_eval(const EvalRequest& request);

}  // namespace isthmus::app
