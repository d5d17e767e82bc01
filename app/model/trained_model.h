#pragma once
// A model that has been trained, to be used: of a run, or of anybody's in Hugging Face's layout.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/data/tokenizer.h"
#include "isthmus/trainer/parameter_table.h"
#include "run/experiment.h"

namespace isthmus::app {

struct TrainedModel {
  Experiment
      experiment;  ///< the run's; else the defaults, with the model, the tokenizer and its longest sequence
  std::unique_ptr<const data::Tokenizer> tokenizer;
  trainer::ParameterTable table;
  std::vector<float> parameters;  ///< the global ones, flat
  std::string origin;             ///< for people: which checkpoint or file

  /// Of the document's end, where attention is bounded by it; else -1.
  [[nodiscard]] std::int64_t mask_separator() const;
};

/// `folder` is a run's, a replica's in it, or has a config.json. Of a run it is the newest checkpoint of any
/// of its replicas that is sound; damaged ones are said on standard error. `assignments` are put over the
/// run's settings. Throws Error(config) or Error(data).
[[nodiscard]] TrainedModel load_trained_model(const std::filesystem::path& folder,
                                              const std::vector<std::string>& assignments);

}  // namespace isthmus::app
