#pragma once
// `isthmus give-model`: started at a site over ssh by `export`, `eval` and `sample` on the machine of the
// launch. It offers the run's checkpoints and the tokenizer's file (model_messages.h), and reads only.

#include <filesystem>
#include <string>

namespace isthmus::app {

struct GiveRequest {
  std::filesystem::path folder;  ///< of runs
  std::string run, site;
  std::string build = {};  ///< of this binary
};

/// Exit status: 0 when the fetcher has closed its end, 3 after an error, which is sent as a message too.
[[nodiscard]] int run_give_model(const GiveRequest& request);

}  // namespace isthmus::app
