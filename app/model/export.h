#pragma once
// `isthmus export`: writes a run's model in Hugging Face's layout, for `transformers` and others.

#include <filesystem>
#include <string>
#include <vector>

#include "model/trained_model.h"

namespace isthmus::app {

struct ExportFormat {
  std::string dtype = "fp32";  ///< or bf16
  /// For a run that knows only the size of its vocabulary; may be empty.
  std::filesystem::path tokenizer = {};
};

struct ExportRequest {
  std::filesystem::path run, to;
  ExportFormat format;
  bool replace = false;
  std::vector<std::string> assignments;
  bool json = false;
  std::string build = {};  ///< of this binary
};

/// Writes the model and its tokenizer into an empty folder, which it creates if needed. Returns a description
/// of the tokenizer. Throws Error(config) for another tokenizer than the model's, and as write_pretrained
/// does.
std::string write_model_folder(const TrainedModel& model, const std::filesystem::path& to,
                               const ExportFormat& format = {});

/// Returns the exit status. Throws as ModelFolder, load_trained_model and write_model_folder do.
[[nodiscard]] int run_export(const ExportRequest& request);

}  // namespace isthmus::app
