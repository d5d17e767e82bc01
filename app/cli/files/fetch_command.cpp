#include "cli/files/fetch_command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "isthmus/base/error.h"
#include "run/objects/stored_run.h"
#include "run/output/json_output.h"
#include "run/output/lines.h"

namespace isthmus::app {
namespace {

constexpr double mega = 1e6;

struct FetchFlags {
  std::string run;
  FetchRequest request;
  bool list = false, log = false, json = false;
  std::vector<std::string> set;
};

double stored_bytes(const StoredWorker& worker) {
  double bytes = static_cast<double>(worker.log_bytes);
  for (const auto& checkpoint : worker.checkpoints) bytes += static_cast<double>(checkpoint.object.size);
  return bytes;
}

void print_stored(const std::vector<StoredWorker>& workers) {
  constexpr std::size_t name_columns = 20;
  fmt::print("{:{}} {:>10} {:>10}  steps of checkpoints\n", "worker", name_columns, "MB", "log MB");
  for (const auto& worker : workers) {
    std::string steps;
    for (const auto& checkpoint : worker.checkpoints) steps += fmt::format(" {}", checkpoint.step);
    const auto row =
        fmt::format("{:{}} {:>10.1f} {:>10.1f} {}", short_name(worker.name, name_columns), name_columns,
                    stored_bytes(worker) / mega, static_cast<double>(worker.log_bytes) / mega,
                    steps.empty() ? " none" : steps);
    fmt::print("{}", in_lines(row, name_columns + 24));
  }
}

nlohmann::ordered_json stored_json(const StoredRunPlace& place, const std::vector<StoredWorker>& workers) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& worker : workers) {
    auto checkpoints = nlohmann::ordered_json::array();
    for (const auto& checkpoint : worker.checkpoints)
      checkpoints.push_back({{"step", checkpoint.step}, {"bytes", checkpoint.object.size}});
    list.push_back({{"worker", worker.name}, {"checkpoints", checkpoints}, {"log_bytes", worker.log_bytes}});
  }
  return {{"run", place.run}, {"workers", list}};
}

int run_fetch(const FetchFlags& flags) {
  JsonOutput json(flags.json);
  const auto place = stored_run_place(flags.run, flags.set);
  if (flags.list) {
    const auto store = open_object_store(place.options);
    const auto workers = stored_workers(*store, place.run, flags.request.worker);
    if (workers.empty())
      data_error(store->name(stored_worker_prefix(place.run, flags.request.worker)) +
                 " holds neither checkpoints nor round logs; check object_store.url and run.name in the URL");
    print_stored(workers);
    json.print(stored_json(place, workers));
    return 0;
  }
  const auto fetched =
      flags.log ? fetch_round_log(place, flags.request) : fetch_checkpoint(place, flags.request);
  fmt::print("{}\n", fetched.string());
  json.print({{"run", place.run}, {"fetched", fetched.string()}});
  return 0;
}

}  // namespace

void add_fetch(CommandLine& commands) {
  const auto flags = std::make_shared<FetchFlags>();
  auto* verb = commands.app().add_subcommand(
      "fetch", "list a run's checkpoints and round logs in an object store, or fetch one");
  verb->add_option("run", flags->run, "the run's URL: object_store.url, a slash and run.name")->required();
  auto* list = verb->add_flag("--list", flags->list, "list what the store has, and fetch nothing");
  verb->add_flag("--log", flags->log, "fetch a round log instead of a checkpoint")->excludes(list);
  verb->add_option("--worker", flags->request.worker, "only of this worker; by default of any");
  verb->add_option("--step", flags->request.step, "the checkpoint of this step; by default the newest");
  verb->add_option("--out", flags->request.out, "folder to fetch into; by default fetched/RUN");
  add_set(*verb, flags->set);
  add_json(*verb, flags->json);
  verb->footer("Example: isthmus fetch s3://bucket/runs/my-run --list");
  commands.on(*verb, [flags] { return run_fetch(*flags); });
}

}  // namespace isthmus::app
