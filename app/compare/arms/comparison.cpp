#include "compare/arms/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "compare/arms/baselines.h"
#include "compare/statistics/statistics.h"
#include "isthmus/base/error.h"
#include "plan/choose.h"
#include "run/experiment/current_names.h"
#include "run/process/names.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using config::Scope;
using config::Source;
using Entries = std::vector<Source::Entry>;

void ComparisonKeys::Budget::serialize(config::Archive& ar) {
  ar({"tokens", &tokens, Scope::agreed,
      "tokens that each run is trained on, over all replicas; 0: as set by run.steps", 0, 1e15});
  ar({"time", &time, Scope::agreed, "time that each run trains, without evaluations; 0: until its last step",
      0, 86400 * 30});
}

void ComparisonKeys::Hopeless::serialize(config::Archive& ar) {
  ar({"after", &after, Scope::agreed,
      "fraction of its tokens or time after which a run may be stopped; 0: never", 0, 1});
  ar({"margin", &margin, Scope::agreed,
      "how far a run may be above the baseline's loss at equal tokens, as a fraction of that loss", 0, 100});
}

void ComparisonKeys::serialize(config::Archive& ar) {
  ar({"name", &name, Scope::agreed, "name of the comparison; empty: the file's name"});
  ar({"out", &out, Scope::per_site, "parent folder of the comparison's folder"});
  ar({"base", &base, Scope::agreed, "experiment that all arms start from"});
  ar({"baseline", &baseline, Scope::agreed, "arm to which the others are compared; empty: the first"});
  ar({"seeds", &seeds, Scope::agreed, "seeds; each arm is run with each seed", 0, 9e15});
  ar({"target_loss", &target_loss, Scope::agreed,
      "loss for which the report shows the training time; 0: 5 % above the baseline's final loss", 0, 1e6});
  ar.section("budget", budget);
  ar.section("hopeless", hopeless);
}

namespace {

constexpr std::size_t max_arms = 64, max_files = 1000;

/// The entries of a section, with the section's name removed from their keys.
Entries take(Source& source, std::string_view section) {
  auto entries = source.take_section(section);
  for (auto& entry : entries) entry.key.erase(0, section.size() + 1);
  return entries;
}

/// Removes the part before the first dot from the key, and returns it.
std::string take_name(std::string_view what, Source::Entry& entry) {
  const auto dot = entry.key.find('.');
  auto name = entry.key.substr(0, dot);
  check_name(fmt::format("{}: {}", entry.place, what), name);
  if (dot == std::string::npos)
    config_error(fmt::format("{}: {} {} is a plain value; expected a section with keys below it", entry.place,
                             what, name));
  entry.key.erase(0, dot + 1);
  return name;
}

/// Lets the keys of a size override the file's. Returns the name of the size; empty without sizes.
std::string apply_size(Source& source, const std::string& wanted) {
  std::vector<std::pair<std::string, Entries>> sizes;
  for (auto& entry : take(source, "sizes")) {
    const auto name = take_name("the size", entry);
    if (sizes.empty() || sizes.back().first != name) sizes.push_back({name, {}});
    sizes.back().second.push_back(std::move(entry));
  }
  const auto size = wanted.empty() ? sizes.begin()
                                   : std::ranges::find(sizes, wanted, [](const auto& s) { return s.first; });
  if (size == sizes.end()) {
    if (wanted.empty()) return {};
    std::string names;
    for (const auto& known : sizes) names += (names.empty() ? "" : ", ") + known.first;
    config_error(fmt::format("--size is {}; expected {}", wanted,
                             names.empty() ? "none: this comparison has no sizes" : "one of " + names));
  }
  for (auto& entry : size->second) source.put(std::move(entry));
  return size->first;
}

void refuse_own(const Source::Entry& entry) {
  for (const auto* key : {"run.name", "run.out", "run.seed"}) {
    if (entry.key == key)
      config_error(fmt::format("{}: {} is set by the comparison; leave it out, and use `seeds` and `out`",
                               entry.place, entry.key));
  }
}

const std::string& single(const Source::Entry& entry) {
  if (entry.is_list || entry.by_step || entry.values.size() != 1)
    config_error(fmt::format("{}: {} is a list or a map; expected a single value", entry.place, entry.key));
  return entry.values.front();
}

const std::vector<std::string>& one_or_more(const Source::Entry& entry) {
  if (entry.by_step || entry.values.empty())
    config_error(
        fmt::format("{}: {} is empty or a map; expected a text or a list of texts", entry.place, entry.key));
  return entry.values;
}

/// Absolute paths; relative ones in the file are relative to the file's folder.
std::vector<fs::path> absolute_paths(const Source::Entry& entry) {
  std::vector<fs::path> paths;
  for (const auto& path : one_or_more(entry)) {
    auto absolute = fs::absolute(entry.base / path).lexically_normal();
    paths.push_back(absolute.has_filename() ? absolute : absolute.parent_path());
  }
  if (paths.size() > max_files)
    config_error(fmt::format("{}: {} has more than {} elements", entry.place, entry.key, max_files));
  return paths;
}

void add_to(Arm& arm, Source::Entry entry) {
  if (entry.key == "about") {
    arm.about = single(entry);
  } else if (entry.key == "faults") {
    for (const auto& text : one_or_more(entry)) arm.faults.push_back(parse_fault(text, entry.place));
  } else if (entry.key == "curve") {
    arm.curves = absolute_paths(entry);
  } else if (entry.key == "runs") {
    arm.folders = absolute_paths(entry);
  } else {
    refuse_own(entry);
    arm.settings.push_back(std::move(entry));
  }
}

std::vector<Arm> take_arms(Source& source) {
  std::vector<Arm> arms;
  for (auto& entry : take(source, "arms")) {
    const auto name = take_name("the arm", entry);
    auto arm = std::ranges::find(arms, name, &Arm::name);
    if (arm == arms.end()) {
      if (arms.size() == max_arms) config_error(fmt::format("{}: more than {} arms", entry.place, max_arms));
      arm = arms.insert(arms.end(), Arm{});
      arm->name = name;
    }
    add_to(*arm, std::move(entry));
  }
  for (const auto& arm : arms) {
    const bool runs = !arm.settings.empty() || !arm.faults.empty();
    if (int{!arm.folders.empty()} + int{!arm.curves.empty()} + int{runs} > 1)
      config_error(fmt::format(
          "the arm {} has more than one of runs, a curve, and settings or faults; expected either folders "
          "of finished runs, or curves made elsewhere, or settings and faults of runs to be made",
          arm.name));
  }
  return arms;
}

void check_keys(const ComparisonKeys& keys, const Source::Entry* base, const std::vector<Arm>& arms) {
  const bool runs = arms.empty() || std::ranges::any_of(arms, &Arm::is_run);
  if (runs && (keys.base.empty() || base == nullptr))
    config_error("base is empty; expected the experiment that all arms begin with, like ../quickstart.yaml");
  if (keys.seeds.empty()) config_error("seeds is []; expected one or more, like [1, 2, 3]");
  if (keys.seeds.size() > max_seeds) config_error(fmt::format("seeds has more than {} elements", max_seeds));
  if (const std::set<std::int64_t> distinct(keys.seeds.begin(), keys.seeds.end());
      distinct.size() < keys.seeds.size())
    config_error(
        "seeds contains an element twice; expected different seeds, because equal ones do not show the "
        "noise");
  if (keys.budget.tokens > 0 && keys.budget.time.seconds > 0)
    config_error("budget.tokens and budget.time are both given; expected one of them");
  if (arms.size() < 2)
    config_error(fmt::format(
        "the file has {}; expected two or more arms, like\n"
        "arms:\n  data_parallel: {{outer.method: data_parallel}}\n  tau4: {{outer.sync_delay: 4}}",
        arms.empty() ? "no arms" : "one arm"));
}

std::size_t baseline_of(const std::string& name, const std::vector<Arm>& arms) {
  return name.empty() ? 0 : arm_named(name, "baseline", arms);
}

void put_setting(Source& source, const std::string& key, std::string value) {
  source.put({key, {std::move(value)}, false, false, "the comparison", {}});
}

/// The plan of a run that already exists. Throws Error with the name of the arm.
RunPlan made_run(const Comparison& comparison, std::size_t index, const fs::path& folder) {
  const auto& arm = comparison.arms[index].name;
  const auto config = folder / "config.yaml";
  if (!fs::exists(config))
    config_error(
        fmt::format("arm {}: {} does not exist; expected the folder of a run made by `isthmus launch`", arm,
                    config.string()));
  try {
    RunPlan run{index, 0, load_experiment(config, {}, std::nullopt, Purpose::training), true};
    run.seed = run.experiment.run.seed;
    // The folder may have been renamed or moved.
    run.experiment.run.name = folder.filename().string();
    run.experiment.run.out = folder.parent_path().string();
    for (const auto& other : comparison.runs) {
      if (other.arm == index && other.seed == run.seed)
        config_error(fmt::format("{} and {} both have the seed {}; expected a different seed for each run",
                                 other.folder().string(), folder.string(), run.seed));
    }
    return run;
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("arm {}: {}", arm, error.what()));
  }
}

Source::Entry with_current_key(Source::Entry entry) {
  entry.key = current_key(entry.key);
  return entry;
}

/// Makes the experiments of a comparison's runs.
class Planner {
 public:
  Planner(const Comparison& comparison, Entries settings)
      : comparison_(comparison), settings_(std::move(settings)) {
    for (const auto& entry : settings_) refuse_own(entry);
  }

  [[nodiscard]] RunPlan plan(std::size_t index, std::int64_t seed) const {
    const auto& arm = comparison_.arms[index];
    auto source = with_current_names(Source::from_file(comparison_.base));
    for (const auto& entry : settings_) source.put(with_current_key(entry));
    for (const auto& entry : arm.settings) source.put(with_current_key(entry));
    put_setting(source, "run.name", fmt::format("{}-seed-{}", arm.name, seed));
    put_setting(source, "run.out", comparison_.folder.string());
    put_setting(source, "run.seed", std::to_string(seed));
    try {
      RunPlan run{index, seed, load_and_choose(source, {}, std::nullopt, Purpose::training).experiment};
      if (comparison_.keys.budget.tokens > 0) {
        const auto steps = std::ceil(comparison_.keys.budget.tokens / tokens_per_step(run.experiment));
        put_setting(source, "run.steps", fmt::format("{:.0f}", steps));
        run.experiment = load_and_choose(source, {}, std::nullopt, Purpose::training).experiment;
      }
      check_faults(arm, run.experiment);
      return run;
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("arm {}: {}", arm.name, error.what()));
    }
  }

 private:
  static void check_faults(const Arm& arm, const Experiment& experiment) {
    auto names = worker_names(experiment);
    names.emplace_back("coordinator");
    for (const auto& fault : arm.faults) {
      if (std::ranges::find(names, fault.worker) == names.end())
        config_error(fmt::format("'{}': there is no worker {}; did you mean {}?", fault.text, fault.worker,
                                 config::nearest(fault.worker, names)));
      if (fault.step >= static_cast<std::uint64_t>(experiment.run.steps))
        config_error(fmt::format("'{}': the run has {} steps; expected an earlier step", fault.text,
                                 experiment.run.steps));
      if (experiment.outer.data_parallel() && fault.what != Fault::What::suspend)
        config_error(
            fmt::format("'{}': outer.method is data_parallel, which ends when it loses a member; expected "
                        "faults only in arms with another method",
                        fault.text));
    }
  }

  const Comparison& comparison_;
  Entries settings_;
};

/// Refuses run.steps together with budget.tokens, which also sets the number of steps.
void check_steps(const ComparisonKeys& keys, const Entries& settings, const std::vector<Arm>& arms) {
  if (keys.budget.tokens == 0) return;
  const auto check = [](const Entries& entries) {
    const auto steps = std::ranges::find_if(
        entries, [](const auto& entry) { return current_key(entry.key) == "run.steps"; });
    if (steps != entries.end())
      config_error(
          fmt::format("{}: run.steps is given, and so is budget.tokens, which sets it; expected one of them",
                      steps->place));
  };
  check(settings);
  for (const auto& arm : arms) check(arm.settings);
}

void plan_runs(Comparison& comparison, Entries settings) {
  auto& runs = comparison.runs;
  for (std::size_t i = 0; i < comparison.arms.size(); ++i)
    for (const auto& folder : comparison.arms[i].folders) runs.push_back(made_run(comparison, i, folder));
  const Planner planner(comparison, std::move(settings));
  std::vector<std::size_t> order = {comparison.baseline};
  for (std::size_t i = 0; i < comparison.arms.size(); ++i)
    if (i != comparison.baseline) order.push_back(i);
  for (const auto seed : comparison.keys.seeds) {
    for (const auto arm : order)
      if (comparison.arms[arm].is_run()) runs.push_back(planner.plan(arm, seed));
  }
}

/// The comparison gets the name of `file` if the source has no name.
Comparison comparison_of(Source source, const fs::path& file, const std::string& size,
                         const std::vector<std::string>& assignments) {
  Comparison comparison;
  comparison.size = apply_size(source, size);
  for (const auto& assignment : assignments) source.set(assignment);
  if (is_experiment(source))
    config_error(file.string() +
                 " has neither base nor arms; expected a comparison. To compare an experiment with its "
                 "baselines, pass --certify");
  comparison.arms = take_arms(source);
  auto settings = take(source, "settings");
  auto gates = source.take_section("gates");
  const auto* base = source.find("base");
  comparison.keys = config::read<ComparisonKeys>(source);
  auto& keys = comparison.keys;
  if (keys.name.empty()) keys.name = file.stem().string();
  check_name("name", keys.name);
  check_keys(keys, base, comparison.arms);
  check_steps(keys, settings, comparison.arms);
  if (base != nullptr) comparison.base = fs::absolute(base->base / keys.base).lexically_normal();
  comparison.baseline = baseline_of(keys.baseline, comparison.arms);
  comparison.gates = read_gates(std::move(gates), comparison);
  const auto folder = comparison.size.empty() ? keys.name : keys.name + "-" + comparison.size;
  comparison.folder = fs::absolute(fs::path(keys.out) / folder).lexically_normal();
  plan_runs(comparison, std::move(settings));
  check_gates(comparison);
  return comparison;
}

}  // namespace

double tokens_per_step(const Experiment& experiment) {
  double sequences = 0;
  if (experiment.sites.empty()) {
    sequences = static_cast<double>(experiment.replicas * experiment.inner.batch);
  } else {
    for (const auto& site : experiment.sites) {
      const auto batch = std::ranges::find(site.settings, "inner.batch", &Source::Entry::key);
      const auto own = batch == site.settings.end() ? static_cast<double>(experiment.inner.batch)
                                                    : std::stod(batch->values.front());
      sequences += own * static_cast<double>(site.replicas);
    }
  }
  return sequences * static_cast<double>(experiment.data.seq_len);
}

std::size_t arm_named(const std::string& name, const std::string& what, const std::vector<Arm>& arms) {
  const auto arm = std::ranges::find(arms, name, &Arm::name);
  if (arm != arms.end()) return static_cast<std::size_t>(arm - arms.begin());
  std::vector<std::string> names;
  names.reserve(arms.size());
  for (const auto& known : arms) names.push_back(known.name);
  config_error(fmt::format("{} is {:.80}, which is not an arm; did you mean {}?", what, name,
                           config::nearest(name, names)));
}

Digest config_fingerprint(const RunPlan& run) {
  auto experiment = run.experiment;
  experiment.run.name.clear();
  experiment.run.seed = 0;
  return fingerprint(experiment);
}

Comparison load_comparison(const fs::path& file, const std::string& size,
                           const std::vector<std::string>& assignments) {
  return comparison_of(Source::from_file(file), file, size, assignments);
}

Comparison load_certified(const fs::path& file, const std::string& size,
                          const std::vector<std::string>& assignments) {
  auto source = Source::from_file(file);
  if (is_experiment(source)) source = with_baselines(file, assignments);
  auto comparison = comparison_of(std::move(source), file, size, assignments);
  if (comparison.gates.empty())
    config_error(
        fmt::format("{}: gates is missing; expected the gates that --certify judges, like\n"
                    "gates:\n  parity: {{arm: {}, at_most: 1}}",
                    file.string(), comparison.arms[comparison.baseline == 0 ? 1 : 0].name));
  return comparison;
}

}  // namespace isthmus::app
