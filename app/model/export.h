#pragma once
// `isthmus export`: writes a run's model in Hugging Face's layout, for `transformers` and others.

#include <filesystem>
#include <string>
#include <vector>

namespace isthmus::app {

struct ExportRequest {
  std::filesystem::path run, to;
  std::vector<std::string> assignments;
  bool json = false;
};

/// Returns the exit status; throws as load_trained_model and write_pretrained do.
[[nodiscard]] int run_export(const ExportRequest& request);

}  // namespace isthmus::app
