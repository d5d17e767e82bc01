#include "run/objects/stored_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "isthmus/trainer/checkpoint.h"
#include "isthmus/trainer/checkpoint_folder.h"
#include "run/experiment/experiment.h"
#include "run/objects/stored_log.h"
#include "run/process/names.h"

namespace isthmus::app {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view checkpoints_part = "checkpoints/", log_part = "log/";
constexpr const char* default_out = "fetched";

/// The part before the first slash, which is removed with it; nullopt if there is no slash.
std::optional<std::string> take_part(std::string_view& key) {
  const auto slash = key.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string part(key.substr(0, slash));
  key.remove_prefix(slash + 1);
  return part;
}

bool is_fetched(const fs::path& file, const StoredCheckpoint& checkpoint) {
  std::error_code none;
  return fs::file_size(file, none) == checkpoint.object.size && !none;
}

fs::path out_folder(const StoredRunPlace& place, const FetchRequest& request) {
  return request.out.empty() ? fs::path(default_out) / place.run : request.out;
}

}  // namespace

std::string stored_worker_prefix(const std::string& run, const std::string& worker) {
  return worker.empty() ? run + "/" : run + "/" + worker + "/";
}

std::string stored_checkpoint_key(const std::string& run, const std::string& worker, std::uint64_t step) {
  return trainer::checkpoint_file(stored_worker_prefix(run, worker) + std::string(checkpoints_part), step, 0)
      .generic_string();
}

std::string stored_log_prefix(const std::string& run, const std::string& worker) {
  return stored_worker_prefix(run, worker) + std::string(log_part);
}

std::string stored_mark_key(const std::string& checkpoint_key) {
  return checkpoint_key + trainer::undone_suffix;
}

std::vector<StoredWorker> stored_workers(const std::vector<ObjectEntry>& objects, const std::string& run) {
  std::map<std::string, StoredWorker> workers;
  std::set<std::string_view> keys;
  for (const auto& object : objects) keys.insert(object.key);
  for (const auto& object : objects) {
    std::string_view rest = object.key;
    const auto run_part = take_part(rest);
    const auto name = take_part(rest);
    if (run_part != run || !name || !is_plain_name(*name)) continue;
    if (rest.starts_with(log_part)) {
      workers[*name].log_bytes += object.size;
    } else if (rest.starts_with(checkpoints_part)) {
      const auto step = trainer::step_of_checkpoint(std::string(rest.substr(checkpoints_part.size())), 0);
      // Another spelling of the number would be another object for the same step.
      if (!step || object.key != stored_checkpoint_key(run, *name, *step)) continue;
      if (!keys.contains(stored_mark_key(object.key))) workers[*name].checkpoints.push_back({*step, object});
    }
  }
  std::vector<StoredWorker> found;
  for (auto& [name, worker] : workers) {
    worker.name = name;
    std::ranges::sort(worker.checkpoints, {}, &StoredCheckpoint::step);
    found.push_back(std::move(worker));
  }
  return found;
}

std::vector<StoredWorker> stored_workers(ObjectStore& store, const std::string& run,
                                         const std::string& worker) {
  return stored_workers(store.list(stored_worker_prefix(run, worker)), run);
}

StoredRunPlace stored_run_place(const std::string& url, const std::vector<std::string>& assignments) {
  auto source = config::Source::from_text("", "no file");
  for (const auto& assignment : assignments) {
    if (!assignment.starts_with("object_store."))
      config_error(
          fmt::format("--set {}: a run in an object store has only settings of object_store", assignment));
    source.set(assignment);
  }
  auto experiment = config::read<Experiment>(source);
  auto options = experiment.object_store.options();
  const auto end = url.find_last_not_of('/');
  const auto slash = url.rfind('/', end);
  const auto run = slash == std::string::npos ? std::string() : url.substr(slash + 1, end - slash);
  options.url = url.substr(0, slash);
  if (!is_plain_name(run) || options.url.empty() || options.url.ends_with('/'))
    config_error(fmt::format(
        "'{}' names no run; expected object_store.url and run.name, as s3://BUCKET/PREFIX/RUN", url));
  check_object_store(options);
  return {run, options};
}

fs::path fetch_checkpoint(const StoredRunPlace& place, const FetchRequest& request) {
  const auto store = open_object_store(place.options);
  std::optional<StoredCheckpoint> best;
  std::string of;
  for (const auto& worker : stored_workers(*store, place.run, request.worker)) {
    for (const auto& checkpoint : worker.checkpoints) {
      if (request.step && checkpoint.step != *request.step) continue;
      if (best && best->step >= checkpoint.step) continue;
      best = checkpoint;
      of = worker.name;
    }
  }
  if (!best)
    data_error(fmt::format("{} holds no checkpoint{}; `isthmus fetch --list` shows what it holds",
                           store->name(stored_worker_prefix(place.run, request.worker)),
                           request.step ? fmt::format(" of step {}", *request.step) : ""));
  const auto folder = out_folder(place, request) / of / checkpoints_part;
  auto file = trainer::checkpoint_file(folder, best->step, 0);
  if (is_fetched(file, *best)) return file;
  std::error_code failed;  // get_file reports it
  fs::create_directories(folder, failed);
  say_error(fmt::format("fetching {} ({:.1f} MB)", store->name(best->object.key),
                        static_cast<double>(best->object.size) / 1e6));
  static_cast<void>(store->get_file(best->object, file, [] { return false; }));
  return file;
}

fs::path fetch_round_log(const StoredRunPlace& place, const FetchRequest& request) {
  const auto store = open_object_store(place.options);
  const auto workers = stored_workers(*store, place.run, request.worker);
  const auto longest = std::ranges::max_element(workers, {}, &StoredWorker::log_bytes);
  if (longest == workers.end() || longest->log_bytes == 0)
    data_error(store->name(stored_worker_prefix(place.run, request.worker)) + " holds no round log");
  auto folder = out_folder(place, request) / "log" / longest->name;
  say_error(fmt::format("fetching {} ({:.1f} MB)", store->name(stored_log_prefix(place.run, longest->name)),
                        static_cast<double>(longest->log_bytes) / 1e6));
  fetch_log(*store, stored_log_prefix(place.run, longest->name), folder);
  return folder;
}

}  // namespace isthmus::app
