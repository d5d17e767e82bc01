#include "launch/sites/launch_places.h"

#include <fmt/format.h>

#include <algorithm>

#include "isthmus/base/error.h"
#include "run/process/machine.h"

namespace isthmus::app {

namespace {

void find_reader(Places& places, const std::string& name, const data::DataConfig& own) {
  if (!own.reads_standard_input()) return;
  if (!places.reader.empty()) {
    config_error(
        fmt::format("data.path is - for {} and {}; expected a separate stream for each worker, like "
                    "tcp://HOST:PORT or unix:///PATH: only one worker can read standard input",
                    places.reader, name));
  }
  places.reader = name;
}

}  // namespace

Places find_places(const Experiment& experiment, const LaunchConfig& config) {
  Places places;
  std::vector<std::string> here;
  std::vector<std::int64_t> ranks;
  bool on_gpus = true;
  for (const auto& name : worker_names(experiment)) {
    auto& place = places.of[name];
    place.has_command = !experiment.worker.words().empty();
    if (!experiment.sites.empty()) {
      place.site = site_of(experiment.sites, name, {});
      place.has_command = place.site->has_command;
      const auto workers = place.site->workers();
      place.index = static_cast<std::size_t>(std::ranges::find(workers, name) - workers.begin());
      if (place.site->is_elsewhere()) continue;
    }
    const auto own = experiment.sites.empty()
                         ? experiment
                         : load_experiment(config.file, config.assignments, WorkerPlace{name, {}});
    if (experiment.sites.empty()) own.replica.check_own_machines("replicas", experiment.replicas);
    here.push_back(name);
    ranks.push_back(own.replica.ranks_per_machine());
    places.processes += own.replica.ranks_per_machine();
    on_gpus = on_gpus && own.device.device != "cpu";
    find_reader(places, name, own.data);
  }
  const auto gpus = on_gpus ? gpus_here() : std::vector<std::string>();
  const auto assigned = assign_gpus(gpus, here, ranks);
  for (std::size_t i = 0; i < here.size(); ++i) places.of[here[i]].gpus = assigned[i];
  return places;
}

}  // namespace isthmus::app
