#include "launch/launch_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text_file.h"
#include "isthmus/outer_sync/net/link/run_secret.h"
#include "isthmus/trainer/checkpoint_folder.h"
#include "run/experiment/identity.h"

namespace isthmus::app {

namespace {

constexpr std::size_t max_secret = 4096;

std::filesystem::path port_file(const std::filesystem::path& folder) { return folder / "coordinator.port"; }

}  // namespace

void LaunchFolder::remember() {
  config_before_ = text_if_there(config());
  metrics_before_ = metrics_size();
}

void LaunchFolder::restore_config() const { replace_file(config(), config_before_); }

std::uintmax_t LaunchFolder::metrics_size() const {
  std::uintmax_t sum = 0;
  for (const auto& name : worker_names(experiment_)) {
    std::error_code no_file;
    const auto size = std::filesystem::file_size(path() / name / "metrics.jsonl", no_file);
    sum += no_file ? 0 : size;
  }
  return sum;
}

void LaunchFolder::keep_port(std::uint16_t port) const {
  try {
    replace_file(port_file(path()), fmt::format("{}\n", port));
  } catch (const Error& error) {
    say_error(fmt::format("{}; launch --resume may not find this coordinator", error.what()));
  }
}

std::uint16_t LaunchFolder::kept_port(const std::filesystem::path& folder) {
  return static_cast<std::uint16_t>(std::strtoul(text_if_there(port_file(folder)).c_str(), nullptr, 10));
}

std::string LaunchFolder::find_secret(bool resume) const {
  const auto& network = experiment_.network;
  if (!network.certs.empty() || network.insecure) return {};
  if (!network.secret.empty()) {
    outer_sync::make_run_secret(network.secret);
    return read_text(network.secret, max_secret);
  }
  const auto kept = resume ? text_if_there(path() / secret_file, max_secret) : "";
  return kept.empty() ? outer_sync::new_run_secret() : kept;
}

void LaunchFolder::write_secret(const std::string& secret) const {
  if (!secret.empty()) replace_file(path() / secret_file, secret, File::Mode::secret);
}

void LaunchFolder::check_checkpoints(const Places& places) const {
  if (experiment_.object_store.gets_copies()) return;
  std::vector<std::vector<std::uint64_t>> steps;
  for (const auto& [name, place] : places.of) {
    // It is unknown where a program of the user's keeps its checkpoints.
    if (place.has_command || (place.site != nullptr && place.site->is_elsewhere())) return;
    steps.push_back(trainer::checkpoint_steps(path() / name / "checkpoints", 0));
  }
  if (experiment_.outer.data_parallel() && !trainer::latest_common_step(steps))
    data_error(fmt::format("{} has no checkpoint that is common to all {} replicas; start without --resume",
                           path().string(), experiment_.replicas));
  // Otherwise the coordinator chooses: a replica without the checkpoint taken copies the state from the
  // others.
  if (std::ranges::all_of(steps, &std::vector<std::uint64_t>::empty))
    data_error(fmt::format("no replica in {} has a checkpoint; start without --resume", path().string()));
}

std::optional<std::uint64_t> LaunchFolder::last_step() const {
  const auto json = nlohmann::json::parse(summary(), nullptr, false);
  if (!json.is_object() || !json.contains("steps") || !json["steps"].is_number_unsigned())
    return std::nullopt;
  return json["steps"].get<std::uint64_t>();
}

std::optional<std::string> LaunchFolder::finished(const Places& places) const {
  const auto last = last_step();
  if (!last || *last < static_cast<std::uint64_t>(experiment_.run.steps)) return std::nullopt;
  const auto is_behind = [&](const auto& worker) {
    const auto& [name, place] = worker;
    if (place.has_command) return true;
    if (place.site != nullptr && place.site->is_elsewhere()) return false;
    const auto steps = trainer::checkpoint_steps(path() / name / "checkpoints", 0);
    return std::ranges::find(steps, *last) == steps.end();
  };
  if (std::ranges::any_of(places.of, is_behind)) return std::nullopt;
  return fmt::format(
      "{0} has finished: it has made its {1} steps, and nothing is left to do; to train on, use isthmus "
      "launch "
      "--resume {2} --set run.steps=N, with N above {1}; to go back to an older checkpoint, move the newer "
      "ones and {2}/summary.json away",
      experiment_.run.name, *last, path().string());
}

void LaunchFolder::keep_summary(const std::string& text) const {
  try {
    if (!text.empty()) replace_file(path() / "summary.json", text);
  } catch (const Error& error) {  // must not change the exit status
    say_error(error.what());
  }
}

std::string LaunchFolder::summary() const { return text_if_there(path() / "summary.json"); }

bool LaunchFolder::run_is_unfinished() const { return may_be_there(path() / "coordinator.state"); }

void LaunchFolder::refuse_unfinished() const {
  if (!run_is_unfinished()) return;
  throw Error(
      ErrorKind::config,
      fmt::format("{0} holds a run that has not ended, and workers that this launch does not start may be "
                  "training; continue with isthmus launch --resume {0}, or, to begin anew, end all its "
                  "workers and move the folder away",
                  path().string()));
}

std::optional<std::filesystem::file_time_type> LaunchFolder::ended_at() const {
  std::error_code none;
  const auto end = std::filesystem::last_write_time(path() / "summary.json", none);
  if (none || run_is_unfinished()) return std::nullopt;
  for (const auto& begun : {config(), port_file(path())}) {  // each start writes them
    const auto time = std::filesystem::last_write_time(begun, none);
    if (!none && time > end) return std::nullopt;
  }
  return end;
}

}  // namespace isthmus::app
