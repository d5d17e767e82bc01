#include "compare/arms/baselines.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "isthmus/base/error.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using config::Source;

namespace {

/// The experiment that all arms start from: the file with the assigned `settings`.
Experiment with_settings(const fs::path& file, const Source& comparison) {
  constexpr std::string_view section = "settings.";
  auto source = Source::from_file(file);
  for (auto entry : comparison.entries()) {
    if (!entry.key.starts_with(section)) continue;
    entry.key.erase(0, section.size());
    source.put(std::move(entry));
  }
  return load_experiment(std::move(source), {}, std::nullopt, Purpose::training);
}

void check(const fs::path& file, const Experiment& experiment) {
  const auto refuse = [&](const std::string& what) { config_error(file.string() + ": " + what); };
  if (experiment.outer.data_parallel())
    refuse("outer.method is data_parallel, which is the baseline; expected a method with an outer loop");
  if (!experiment.sites.empty())
    refuse(fmt::format(
        "sites has {}; expected no sites, because the runs of a certificate are made on this machine. "
        "Leave sites out and set replicas",
        experiment.sites.front().name));
  if (experiment.automatic.utilization > 0)
    refuse(
        fmt::format("outer.auto.utilization is {:g}; expected 0, because a certificate is for settings that "
                    "do not change. `isthmus config {}` prints the settings that it chooses",
                    experiment.automatic.utilization, file.string()));
}

}  // namespace

bool is_experiment(const Source& source) {
  return source.find("base") == nullptr && std::ranges::none_of(source.entries(), [](const auto& entry) {
           return entry.key == "arms" || entry.key.starts_with("arms.");
         });
}

Source with_baselines(const fs::path& experiment, const std::vector<std::string>& assignments) {
  Source source;
  const auto put = [&](const std::string& key, const std::string& value) {
    if (source.find(key) == nullptr) source.put({key, {value}, false, false, experiment.string(), {}});
  };
  put("name", experiment.stem().string() + "-certificate");
  source.put({"seeds", {"1", "2", "3"}, true, false, experiment.string(), {}});
  put("arms.data_parallel.outer.method", "data_parallel");
  put("arms.data_parallel.reducers", "0");
  put("arms.one_replica.about", "the whole batch in one replica, under the same outer step");
  put("arms.experiment.about", "the experiment, unchanged");
  put("gates.parity.arm", "experiment");
  for (const auto& assignment : assignments) source.set(assignment);
  if (source.find("base") != nullptr)
    config_error("--set base: leave it out; the base is the experiment to certify, " + experiment.string());
  put("base", fs::absolute(experiment).lexically_normal().string());

  const auto judged = with_settings(experiment, source);
  check(experiment, judged);
  const auto hold_the_whole_batch = [&](const std::string& arm) {
    put(arm + ".replicas", "1");
    put(arm + ".inner.batch", std::to_string(judged.replicas * judged.inner.batch));
    put(arm + ".reducers", "0");
    put(arm + ".outer.min_replicas", "0");
    put(arm + ".outer.quorum", "0");
  };
  const bool alone = judged.inner.is_muon();  // Muon's steps are reproducible only on one kind of processor
  put("arms.data_parallel.about",
      alone ? "the whole batch in one replica, without an outer loop" : "gradients averaged at every step");
  if (alone) hold_the_whole_batch("arms.data_parallel");
  if (judged.replicas == 1) {  // the experiment already is that arm
    static_cast<void>(source.take_section("arms.one_replica"));
    return source;
  }
  hold_the_whole_batch("arms.one_replica");
  return source;
}

}  // namespace isthmus::app
