#include "compare/runs/run_state.h"

#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/text_file.h"
#include "isthmus/trainer/checkpoint_folder.h"

namespace isthmus::app {

namespace fs = std::filesystem;

namespace {

constexpr const char* ended_file = "ended.json";

/// Copies the settings that do not affect the result, so that they compare equal. `recorded` is what `launch`
/// wrote.
void forget_place(Experiment& recorded, Experiment& wanted) {
  recorded.run.out = wanted.run.out;  // the folder may have moved
  if (wanted.trainer.threads == 0) wanted.trainer.threads = recorded.trainer.threads;
}

void check_config(const RunPlan& run, const fs::path& file) {
  auto recorded = load_experiment(file, {}, std::nullopt, Purpose::training);
  auto wanted = run.experiment;
  forget_place(recorded, wanted);
  const auto theirs = config::list(recorded), ours = config::list(wanted);
  std::string difference;
  for (std::size_t i = 0; i < ours.size() && difference.empty(); ++i) {
    if (ours[i].value != theirs[i].value)
      difference = fmt::format("{} is {} there and {} in this comparison", ours[i].key, theirs[i].value,
                               ours[i].value);
  }
  if (difference.empty() && to_yaml(recorded) != to_yaml(wanted)) difference = "its sites differ";
  if (difference.empty()) return;
  config_error(
      fmt::format("{} has a run of another config: {}. Two configs under one name would be mixed: use "
                  "--set out=FOLDER or another name, or move that folder away",
                  run.folder().string(), difference));
}

/// Whether all workers have a checkpoint of one step, from which `launch --resume` continues exactly.
/// Otherwise the run is made again: a replica that copied the state would change the result that is compared.
bool has_checkpoint(const RunPlan& run) {
  std::vector<std::vector<std::uint64_t>> steps;
  for (const auto& name : worker_names(run.experiment))
    steps.push_back(trainer::checkpoint_steps(run.folder() / name / "checkpoints", 0));
  return trainer::latest_common_step(steps).has_value();
}

EarlyEnd early_end_of(const fs::path& file) {
  const auto json = nlohmann::json::parse(read_text(file), nullptr, false);
  const auto text = [&](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_string() ? json[key].get<std::string>()
                                                                           : std::string();
  };
  EarlyEnd end{text("how"), text("words")};
  for (const auto* how : {"time", "hopeless", "diverged"})
    if (end.how == how) return end;
  data_error(file.string() + " is damaged; remove it to continue the run");
}

}  // namespace

nlohmann::json summary_of(const fs::path& folder) {
  const auto file = folder / "summary.json";
  if (!fs::exists(file)) return {};
  auto json = nlohmann::json::parse(read_text(file), nullptr, false);
  const auto sound = [&] {
    return json.is_object() && json.contains("stopped") && json["stopped"].is_boolean() &&
           json.contains("parameters") && json["parameters"].is_number_unsigned() &&
           json.contains("wan_bytes_sent") && json["wan_bytes_sent"].is_object();
  };
  if (!sound()) {
    data_error(file.string() + " is not the summary of a run; move " + folder.string() +
               " away to run it again");
  }
  return json;
}

RunState state_of(const RunPlan& run) {
  RunState state;
  const auto config = run.folder() / "config.yaml";
  if (!fs::exists(config)) return state;
  if (!run.is_read_only) check_config(run, config);
  state.stage = RunState::Stage::unfinished;
  if (const auto ended = run.folder() / ended_file; fs::exists(ended)) {
    state.ended = early_end_of(ended);
    state.stage = RunState::Stage::finished;
    return state;
  }
  const auto summary = summary_of(run.folder());
  if (!summary.is_null() && !summary["stopped"].get<bool>()) {
    state.stage = RunState::Stage::finished;
    return state;
  }
  state.resumable = has_checkpoint(run);
  return state;
}

void mark_ended(const RunPlan& run, const EarlyEnd& end) {
  const nlohmann::json json = {{"how", end.how}, {"words", end.words}};
  replace_file(run.folder() / ended_file,
               json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace isthmus::app
