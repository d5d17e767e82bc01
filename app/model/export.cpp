#include "model/export.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/trainer/pretrained.h"
#include "model/bytes_tokenizer.h"
#include "model/trained_model.h"
#include "run/output/json_output.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

/// Returns a description for the user.
std::string write_tokenizer(const TrainedModel& model, const fs::path& folder) {
  const auto& name = model.experiment.data.tokenizer;
  if (name.starts_with("vocab:")) return "no tokenizer: the run only knows the size of its vocabulary";
  Json settings = {{"model_max_length", model.experiment.data.seq_len}};
  const auto end_token = [&] { return model.tokenizer->decode(std::vector{model.tokenizer->separator()}); };
  if (name == "bytes") {
    replace_file(folder / "tokenizer.json", bytes_tokenizer());
    settings["eos_token"] = bytes_separator;
  } else if (name.ends_with(".json")) {
    fs::copy_file(name, folder / "tokenizer.json", fs::copy_options::overwrite_existing);
    settings["eos_token"] = end_token();
  } else {
    fs::copy_file(name, folder / "tokenizer.model", fs::copy_options::overwrite_existing);
    settings["tokenizer_class"] = "LlamaTokenizer";
  }
  if (!settings.contains("tokenizer_class")) settings["tokenizer_class"] = "PreTrainedTokenizerFast";
  replace_file(folder / "tokenizer_config.json", settings.dump(2) + "\n");
  return "tokenizer " + name;
}

}  // namespace

int run_export(const ExportRequest& request) {
  JsonOutput json(request.json);
  const auto model = load_trained_model(request.run, request.assignments);
  trainer::write_pretrained(request.to, model.table, model.parameters,
                            {.seq_len = model.experiment.data.seq_len,
                             .separator = model.experiment.data.tokenizer.starts_with("vocab:")
                                              ? std::nullopt
                                              : std::optional(model.tokenizer->separator())});
  const auto tokenizer = write_tokenizer(model, request.to);
  fmt::print("{}\n{} of {} parameters, {}\nwrote {}\n", model.origin,
             trainer::pretrained_class(model.experiment.model), model.table.parameters(), tokenizer,
             request.to.string());
  json.print({{"model", model.origin},
              {"class", trainer::pretrained_class(model.experiment.model)},
              {"parameters", model.table.parameters()},
              {"tokenizer", model.experiment.data.tokenizer},
              {"folder", request.to.string()}});
  return 0;
}

}  // namespace isthmus::app
