#include "model/export.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/text_file.h"
#include "isthmus/trainer/pretrained.h"
#include "model/bytes_tokenizer.h"
#include "model/model_folder.h"
#include "run/output/json_output.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr const char* tokenizer_json_name = "tokenizer.json";
constexpr const char* tokenizer_model_name = "tokenizer.model";
constexpr const char* tokenizer_settings_name = "tokenizer_config.json";
constexpr std::size_t max_tokenizer_bytes = 256 << 20;

struct ExportedTokenizer {
  std::vector<std::pair<std::string, std::string>> files;  ///< names and contents
  std::optional<std::uint32_t> separator;                  ///< id that ends a document
  std::string description;                                 ///< human-readable
};

/// The tokenizer that --tokenizer names. Throws Error(config) unless it fits a model on vocab:N.
std::unique_ptr<const data::Tokenizer> given_tokenizer(const std::string& file, const TrainedModel& model) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::config, "--tokenizer " + file + ": " + why);
  };
  const auto& of_run = model.experiment.data.tokenizer;
  if (!of_run.starts_with("vocab:"))
    refuse("the model has a tokenizer already, data.tokenizer " + of_run + "; expected no --tokenizer");
  std::error_code error;
  if (!fs::is_regular_file(file, error))
    refuse("is not a file; expected a tokenizer.json or a SentencePiece .model file");
  auto tokenizer = data::make_tokenizer(file);
  const auto size = model.tokenizer->vocab_size();
  if (tokenizer->vocab_size() > size)
    refuse(fmt::format(
        "has {} ids, and the model has a vocabulary of {}; expected the tokenizer that made the data",
        tokenizer->vocab_size(), size));
  return tokenizer;
}

ExportedTokenizer tokenizer_of(const TrainedModel& model, const fs::path& given) {
  const auto& data = model.experiment.data;
  ExportedTokenizer out;
  if (data.separator >= 0) out.separator = static_cast<std::uint32_t>(data.separator);
  const auto file = given.empty() ? data.tokenizer : given.string();
  const auto other = given.empty() ? nullptr : given_tokenizer(file, model);
  if (file.starts_with("vocab:")) {
    out.description =
        "no tokenizer: the run only knows the size of its vocabulary; --tokenizer FILE adds one";
    return out;
  }
  const auto& tokenizer = other ? *other : *model.tokenizer;
  if (!out.separator) out.separator = tokenizer.separator();
  Json settings = {{"model_max_length", data.seq_len}};
  settings["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (file == "bytes") {
    if (out.separator == 0U)
      settings["eos_token"] = bytes_separator;  // the only one with a spelling of its own
    out.files.emplace_back(tokenizer_json_name, bytes_tokenizer());
  } else if (file.ends_with(".json")) {
    out.files.emplace_back(tokenizer_json_name, read_text(file, max_tokenizer_bytes));
  } else {
    // The class that calls SentencePiece itself; the others approximate it, and differ in some ids.
    settings["tokenizer_class"] = "SentencePieceBackend";
    out.files.emplace_back(tokenizer_model_name, read_text(file, max_tokenizer_bytes));
  }
  if (file != "bytes" && *out.separator < tokenizer.vocab_size())
    settings["eos_token"] = tokenizer.spelling(*out.separator);
  out.files.emplace_back(tokenizer_settings_name, settings.dump(2) + "\n");
  out.description = "tokenizer " + file;
  return out;
}

}  // namespace

std::string write_model_folder(const TrainedModel& model, const fs::path& to, const ExportFormat& format) {
  const auto tokenizer = tokenizer_of(model, format.tokenizer);
  trainer::write_pretrained(
      to, model.table, model.parameters,
      {.seq_len = model.experiment.data.seq_len,
       .separator = tokenizer.separator,
       .type = format.dtype == "bf16" ? outer_sync::log::ValueType::bf16 : outer_sync::log::ValueType::fp32});
  for (const auto& [name, text] : tokenizer.files) replace_file(to / name, text);
  return tokenizer.description;
}

int run_export(const ExportRequest& request) {
  JsonOutput json(request.json);
  const auto& format = request.format;
  ModelFolder folder(request.to, request.replace);
  const auto model = load_trained_model(request.run, request.assignments, request.build);
  std::string tokenizer;
  folder.replace([&](const auto& to) { tokenizer = write_model_folder(model, to, format); },
                 {{"model", model.origin}});
  fmt::print("{}\n{} of {} parameters in {}, {}\nwrote {}\n", model.origin,
             trainer::pretrained_class(model.experiment.model), model.table.parameters(), format.dtype,
             tokenizer, request.to.string());
  json.print(
      {{"model", model.origin},
       {"class", trainer::pretrained_class(model.experiment.model)},
       {"parameters", model.table.parameters()},
       {"dtype", format.dtype},
       {"tokenizer", format.tokenizer.empty() ? model.experiment.data.tokenizer : format.tokenizer.string()},
       {"folder", request.to.string()}});
  return 0;
}

}  // namespace isthmus::app
