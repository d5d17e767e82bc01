#pragma once
// `isthmus sample`: generates text with a trained model.

#include <filesystem>
#include <string>
#include <vector>

#include "isthmus/trainer/sample.h"

namespace isthmus::app {

struct SampleRequest {
  std::filesystem::path model;
  std::string prompt;
  bool json = false;
  trainer::SampleOptions options;
  std::vector<std::string> assignments;
  std::string build = {};  ///< of this binary
};

/// Prints the prompt and its continuation. Returns the exit status; throws Error(config) or Error(data).
[[nodiscard]] int run_sample(const SampleRequest& request);

}  // namespace isthmus::app
