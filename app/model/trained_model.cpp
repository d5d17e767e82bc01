#include "model/trained_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/say.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/trainer/checkpoint.h"
#include "isthmus/trainer/checkpoint_folder.h"
#include "isthmus/trainer/pretrained.h"
#include "model/bytes_tokenizer.h"
#include "model/launched_run.h"
#include "run/objects/stored_run.h"

namespace isthmus::app {

namespace fs = std::filesystem;

namespace {

constexpr const char* checkpoints_name = "checkpoints";

trainer::ParameterTable parameter_table(const Experiment& experiment, const data::Tokenizer& tokenizer) {
  return {{experiment.model, tokenizer.vocab_size()},
          experiment.outer.num_fragments,
          static_cast<std::uint64_t>(experiment.outer.chunk_elements)};
}

struct CheckpointAt {
  std::uint64_t step = 0;
  fs::path file;
};

/// Checkpoints of a run's replicas or of one replica, newest first; those of one step by replica name.
std::vector<CheckpointAt> saved_checkpoints(const fs::path& folder) {
  std::vector<fs::path> replicas = {folder};
  std::error_code no_folder;
  for (const auto& entry : fs::directory_iterator(folder, no_folder)) replicas.push_back(entry.path());
  std::ranges::sort(replicas);
  std::vector<CheckpointAt> all;
  for (const auto& replica : replicas) {
    for (const auto step : trainer::checkpoint_steps(replica / checkpoints_name, 0))
      all.push_back({step, trainer::checkpoint_file(replica / checkpoints_name, step, 0)});
  }
  std::ranges::stable_sort(all, std::ranges::greater(), &CheckpointAt::step);
  return all;
}

/// The newest sound checkpoint. Reports damaged ones, so that an older model is not mistaken for the newest.
trainer::Checkpoint newest_checkpoint(const fs::path& folder) {
  std::optional<Error> newest_failed;
  for (const auto& [step, file] : saved_checkpoints(folder)) {
    try {
      auto checkpoint = trainer::read_checkpoint(file);
      if (newest_failed) say_error(fmt::format("isthmus: using {} instead", file.string()));
      return checkpoint;
    } catch (const Error& error) {
      say_error(fmt::format("isthmus: {}", error.what()));
      if (!newest_failed) newest_failed = error;
    }
  }
  if (newest_failed) throw *newest_failed;
  throw Error(ErrorKind::data, folder.string() +
                                   " holds no model; expected the folder of a run that has written a "
                                   "checkpoint, or a folder with a config.json");
}

TrainedModel of_run(const fs::path& folder, const std::vector<std::string>& assignments) {
  const auto checkpoint = newest_checkpoint(folder);
  auto experiment =
      load_experiment(trainer::config_of(checkpoint), assignments, std::nullopt, Purpose::inference);
  auto tokenizer = data::make_tokenizer(experiment.data.tokenizer);
  auto table = parameter_table(experiment, *tokenizer);
  if (table.fingerprint() != checkpoint.model)
    throw Error(ErrorKind::data, checkpoint.file.string() +
                                     " holds a different model than its settings and the tokenizer " +
                                     experiment.data.tokenizer + " describe");
  const auto global =
      outer_sync::saved_global_parameters(checkpoint.section(trainer::agreed_section), table.layout());
  return {.experiment = std::move(experiment),
          .tokenizer = std::move(tokenizer),
          .table = std::move(table),
          .parameters = {global.begin(), global.end()},
          .origin = checkpoint.file.string()};
}

/// Whether this is the file that `isthmus export` writes for a run on bytes.
bool is_bytes_tokenizer(const fs::path& file) {
  const auto expected = bytes_tokenizer();
  const File open(file, File::Mode::read);
  std::string text(expected.size(), ' ');
  return open.size() == expected.size() && open.read(std::as_writable_bytes(std::span(text))) &&
         text == expected;
}

/// Value of data.tokenizer for the tokenizer file in the model's folder.
std::string tokenizer_beside(const fs::path& folder) {
  for (const auto* name : {"tokenizer.json", "tokenizer.model"}) {
    const auto file = folder / name;
    if (fs::exists(file)) return is_bytes_tokenizer(file) ? "bytes" : fs::absolute(file).string();
  }
  throw Error(ErrorKind::data,
              folder.string() +
                  " has neither a tokenizer.json nor a tokenizer.model; expected one, or --set "
                  "data.tokenizer=FILE");
}

TrainedModel of_pretrained(const fs::path& folder, const std::vector<std::string>& assignments) {
  constexpr std::int64_t longest = 2048;  // tokens, unless --set data.seq_len asks for more
  const auto shape = trainer::read_pretrained_shape(folder);
  auto source = config::Source::from_text("", "no file");
  source.put({"data.seq_len",
              {std::to_string(std::min(shape.positions, longest))},
              false,
              false,
              "config.json",
              {}});
  auto experiment = load_experiment(std::move(source), assignments, std::nullopt, Purpose::inference);
  experiment.model = shape.model.config;
  experiment.model.resolve(experiment.data.seq_len);
  experiment.outer.num_fragments = 1;
  const auto is_tokenizer = [](const std::string& text) { return text.starts_with("data.tokenizer="); };
  if (std::ranges::none_of(assignments, is_tokenizer)) experiment.data.tokenizer = tokenizer_beside(folder);
  auto tokenizer = data::make_tokenizer(experiment.data.tokenizer);
  auto table = parameter_table(experiment, *tokenizer);
  auto parameters = trainer::read_pretrained(folder, table);
  return {.experiment = std::move(experiment),
          .tokenizer = std::move(tokenizer),
          .table = std::move(table),
          .parameters = std::move(parameters),
          .origin = folder.string()};
}

/// Fetches the newest checkpoint of a run in an object store. Returns the replica's folder with it.
fs::path fetch_run(const std::string& url, const std::vector<std::string>& assignments) {
  std::vector<std::string> of_store;
  std::ranges::copy_if(assignments, std::back_inserter(of_store),
                       [](const auto& text) { return text.starts_with("object_store."); });
  return fetch_checkpoint(stored_run_place(url, of_store), {}).parent_path().parent_path();
}

}  // namespace

std::int64_t TrainedModel::mask_separator() const {
  const auto& data = experiment.data;
  if (!data.document_mask) return -1;
  return data.separator >= 0 ? data.separator : static_cast<std::int64_t>(tokenizer->separator());
}

TrainedModel load_trained_model(const fs::path& folder, const std::vector<std::string>& assignments,
                                const std::string& build) {
  if (is_bucket_url(folder.string())) return of_run(fetch_run(folder.string(), assignments), assignments);
  if (fs::exists(folder / "config.json")) return of_pretrained(folder, assignments);
  if (saved_checkpoints(folder).empty() && is_launched_run(folder))
    return model_of_launched_run(folder, assignments, build);
  return of_run(folder, assignments);
}

}  // namespace isthmus::app
