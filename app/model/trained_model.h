#pragma once
// A trained model, ready to use: of a run, or in Hugging Face's layout.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/data/tokenizer.h"
#include "isthmus/trainer/parameter_table.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

struct TrainedModel {
  Experiment experiment;  ///< the run's; otherwise the defaults with the model, its tokenizer and its longest
                          ///< sequence
  std::unique_ptr<const data::Tokenizer> tokenizer;
  trainer::ParameterTable table;
  std::vector<float> parameters;  ///< global parameters, flat
  std::string origin;             ///< human-readable: the checkpoint or folder

  /// Token that ends a document if attention is masked by document; otherwise -1.
  [[nodiscard]] std::int64_t mask_separator() const;
};

/// `folder` is a run's folder, a replica's folder in it, a folder with a config.json, or the URL of a run in
/// a bucket: its newest checkpoint is then fetched. For a run, loads the newest sound checkpoint of any
/// replica and reports damaged ones on standard error; if the folder has none, the model comes from the live
/// run or from a site (launched_run.h). `assignments` override the run's settings; `build` is this binary's.
/// Throws Error(config) or Error(data).
[[nodiscard]] TrainedModel load_trained_model(const std::filesystem::path& folder,
                                              const std::vector<std::string>& assignments,
                                              const std::string& build);

}  // namespace isthmus::app
