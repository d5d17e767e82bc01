#include "run/experiment/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "isthmus/outer_sync/config/settings_timeline.h"
#include "plan/auto.h"
#include "run/process/run_folder.h"

namespace isthmus::app {

using config::Scope;

void RunConfig::serialize(config::Archive& ar) {
  ar({"name", &name, Scope::agreed, "name of the run and of its folder"});
  ar({"out", &out, Scope::per_site, "folder that run folders are made in"});
  ar({"steps", &steps, Scope::agreed, "inner steps", 1, 1e12});
  ar({"seed", &seed, Scope::agreed, "seed of the initial parameters and the data order", 0, 9e15});
  ar({"stop_after", &stop_after, Scope::agreed, "stop with a checkpoint after this step; 0 never", 0, 1e12});
  ar({"eval_every", &eval_every, Scope::live,
      "steps between evaluations of the global parameters; 0 only first and last", 0, 1e12});
  ar({"eval_sequences", &eval_sequences, Scope::agreed,
      "held-out sequences in one evaluation, shared among the replicas", 1, 1e9});
  ar({"checkpoint_every", &checkpoint_every, Scope::live, "steps between checkpoints; 0 only at the end", 0,
      1e12});
  ar({"checkpoint_interval", &checkpoint_interval, Scope::per_site,
      "coordinator only: all replicas write a checkpoint this long after their newest common one; 0 never", 0,
      1e8});
  ar({"keep_checkpoints", &keep_checkpoints, Scope::agreed,
      "newest checkpoints that each replica keeps, 2 or more; older ones are deleted once all replicas have "
      "a newer one; 0 keeps all",
      0, 1e9});
  ar({"keep_every", &keep_every, Scope::agreed,
      "also keep checkpoints of steps that are a multiple of this; 0 none", 0, 1e12});
  ar({"sample_tokens", &sample_tokens, Scope::agreed, "tokens of text generated at the end; 0 none", 0,
      100000});
  ar({"trace_steps", &trace_steps, Scope::per_site, "first steps to record in trace.json", 0, 1e6});
  ar({"record_outer_gradients", &record_outer_gradients, Scope::per_site,
      "write every Nth outer gradient of each fragment to the replica's folder, for comparing codecs; 0 none",
      0, 1e9});
  ar({"restarts", &restarts, Scope::per_site,
      "maximum times that `launch` restarts each worker that was killed or crashed while the others "
      "continued; a worker that lost its connections is restarted without limit",
      0, 1e6});
  ar({"on_event", &on_event, Scope::per_site,
      "shell command that the coordinator runs for each event of the run: the event is JSON on its standard "
      "input, $1 is its kind; empty: none"});
  ar({"gather", &gather, Scope::per_site,
      "copy workers' metrics and log lines to the coordinator's run folder"});
  ar({"gather_limit", &gather_limit, Scope::per_site,
      "coordinator only: maximum size of one member's gathered lines; beyond it, further metrics of that "
      "member are dropped and only the newer part of its log is kept. All members together may use 16 times "
      "that",
      0, 1e18});
  ar({"disk_low", &disk_low, Scope::per_site,
      "free space on the disk of a run folder below which the coordinator warns", 0, 1e18});
  ar({"stop_grace", &stop_grace, Scope::per_site,
      "time from Ctrl-C, or the loss of the launch, until processes that still run are killed", 0.5, 86400});
}

void AutoConfig::serialize(config::Archive& ar) {
  ar({"utilization", &utilization, Scope::agreed,
      "wanted share of the time spent computing; settings of the outer loop are chosen to reach it "
      "(docs/plan.md); 0 leaves them as written",
      0, 0.9999});
  ar({"at_start", &at_start, Scope::agreed,
      "choose sync_every, num_fragments, sync_delay and codec when the run starts; the run's folder then "
      "gets the chosen settings and false"});
  ar({"step_time", &step_time, Scope::agreed,
      "time of an inner step, for outer.auto; 0: the links file has one for every site", 0, 86400});
  ar({"links", &links, Scope::per_site,
      "links file for outer.auto; empty: network.emulate and network.rate describe the links"});
  ar({"in_run", &in_run, Scope::per_site,
      "coordinator only: adjust sync_every and sync_delay during the run too, from the members' "
      "measurements"});
  ar({"least_between", &least_between, Scope::per_site,
      "minimum time between two changes that outer.auto makes", 1, 86400});
}

void Experiment::serialize(config::Archive& ar) {
  ar.section("run", run);
  ar({"replicas", &replicas, Scope::agreed, "replicas that train together", 1, 1024});
  ar({"reducers", &reducers, Scope::per_site,
      "workers that only reduce, started by `launch` in addition to the replicas", 0, 64});
  device.serialize(ar);
  ar.section("model", model);
  ar.section("data", data);
  ar.section("inner", inner);
  ar.section("trainer", trainer);
  ar.section("replica", replica);
  ar.section("outer", outer);
  ar.section("outer.auto", automatic);
  ar.section("join", join);
  ar.section("network", network);
  ar.section("metrics", metrics);
  ar.section("worker", worker);
  ar.section("launch", launch);
}

void LaunchDefaults::serialize(config::Archive& ar) {
  ar({"silence", &silence, Scope::per_site,
      "time without the launch after which a site ends its workers; for sites without a launch.silence of "
      "their own",
      1, 1e7});
}

void WorkerConfig::serialize(config::Archive& ar) {
  ar({"command", &command, Scope::per_site,
      "program that trains instead of `isthmus worker`, as a list: [python, train.py]; it gets the arguments "
      "of `isthmus worker` (docs/python.md)"});
}

std::vector<std::string> WorkerConfig::words() const {
  if (command.empty()) return {};
  const auto list = nlohmann::json::parse(command, nullptr, false);
  const bool fits = list.is_array() && !list.empty() &&
                    std::ranges::all_of(list, [](const auto& word) { return word.is_string(); });
  if (!fits || list.front().get<std::string>().empty())
    throw Error(ErrorKind::config,
                fmt::format("worker.command is '{}'; expected a list like [python, train.py]", command));
  return list.get<std::vector<std::string>>();
}

namespace {

/// Makes a relative path absolute: from the folder of the file that sets it, or the working directory for
/// --set.
void anchor(std::string& path, const config::Source& source, std::string_view key) {
  if (path.empty()) return;
  for (const auto& entry : source.entries()) {
    if (entry.key == key) path = std::filesystem::absolute(entry.base / path).lexically_normal().string();
  }
}

}  // namespace

void check_name(const std::string& what, const std::string& name) {
  const bool plain =
      !name.empty() && name.size() <= 64 && name.front() != '.' &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
          std::string::npos;
  if (!plain) {
    throw Error(ErrorKind::config,
                what + " is '" + name +
                    "'; expected up to 64 letters, digits, '.', '_' and '-', not beginning "
                    "with '.': it names a folder");
  }
}

void check_member_name(const std::string& what, const std::string& name) {
  check_name(what, name);
  constexpr auto taken = std::to_array<std::string_view>({"config.yaml", "coordinator", "launch.json",
                                                          "launch.log", "launch.seen", "metrics.jsonl",
                                                          "run.secret", "stores", "summary.json"});
  const auto is_of = [&name](std::string_view own) {
    return name == own || name.starts_with(std::string(own) + '.');
  };
  if (std::ranges::any_of(taken, is_of))
    throw Error(ErrorKind::config,
                fmt::format("{} is '{}', which is reserved for the run's own files; choose another name",
                            what, name));
}

outer_sync::protocol::Hello hello_of(Experiment& experiment, const std::string& name,
                                     const std::string& build) {
  outer_sync::protocol::Hello hello;
  hello.run = experiment.run.name;
  hello.member.name = name;
  hello.member.incarnation = next_incarnation(experiment.folder() / name);
  hello.build = build;
  hello.config = shared_items(experiment);
  hello.site = experiment.site;
  return hello;
}

data::LoaderOptions loader_options(const Experiment& experiment) {
  return {.seq_len = experiment.data.seq_len,
          .batch = experiment.inner.batch,
          .replicas = experiment.replicas,
          .seed = static_cast<std::uint64_t>(experiment.run.seed),
          .prefetch = experiment.data.prefetch,
          .threads = experiment.data.threads,
          .shuffle_blocks = experiment.data.shuffle_blocks};
}

std::optional<data::StreamOptions> stream_options(const Experiment& experiment, const std::string& name) {
  const auto& data = experiment.data;
  if (!data.is_stream()) return {};
  constexpr std::int64_t batches_ahead = 2;
  const auto folder = data.store.empty() ? experiment.folder() / "stores" : std::filesystem::path(data.store);
  const auto heldout = data.heldout > 0 ? experiment.run.eval_sequences * data.seq_len + 1 : 0;
  data::StreamOptions options;
  options.store = folder / name;
  options.reader = name;
  options.heldout_tokens = static_cast<std::uint64_t>(heldout);
  options.buffer_tokens =
      static_cast<std::uint64_t>(batches_ahead * experiment.inner.batch * data.seq_len + 1);
  return options;
}

std::uint64_t noise_seed(const Experiment& experiment, const std::string& name) {
  auto seed = static_cast<std::uint64_t>(experiment.run.seed);
  for (const unsigned char c : name) seed = random_bits(seed, 0x6e616d65, c);
  return seed;
}

outer_sync::protocol::ClosingRule closing_rule(const Experiment& experiment) {
  const auto& outer = experiment.outer;
  const auto quorum = static_cast<std::size_t>(outer.quorum);
  const auto grace = std::chrono::duration<double>(outer.grace.seconds);
  return {.least = std::max(static_cast<std::size_t>(outer.required_replicas()), quorum),
          .quorum = quorum,
          .grace = std::chrono::duration_cast<outer_sync::protocol::Time>(grace),
          .reject = outer.reject};
}

namespace {

std::string reason_not_to_set(const config::Item& item) {
  if (item.scope == Scope::live || item.at_once) return {};
  const auto* why = item.scope == Scope::per_site
                        ? "each member reads it when it starts; change the member's config and restart it"
                        : "everything computed in the run so far depends on it";
  return fmt::format(
      "{} cannot be set during a run: its class is {}, and {}. Keys of class live and network.rate can be "
      "set",
      item.key, to_string(item.scope), why);
}

}  // namespace

outer_sync::protocol::ChangeVerdict judge_change(const Experiment& experiment,
                                                 const outer_sync::protocol::Settings& before,
                                                 const config::SharedItems& items) {
  auto asked = experiment;
  const auto keys = config::list(asked);
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const auto& key : keys) names.push_back(key.key);
  std::size_t at_once = 0;
  config::Source source;
  try {
    for (const auto& [key, value] : items) {
      const auto item = std::ranges::find(keys, key, &config::Item::key);
      if (item == keys.end())
        return {
            fmt::format("unknown key {}; did you mean {}?", key.substr(0, 80), config::nearest(key, names)),
            false};
      if (auto reason = reason_not_to_set(*item); !reason.empty()) return {std::move(reason), false};
      at_once += item->at_once ? 1 : 0;
      source.set(key + "=" + value);
    }
    config::Reader reader(source);  // checks each value by itself
    asked.serialize(reader);
    reader.finish();
  } catch (const Error& error) {
    return {error.what(), false};
  }
  if (at_once > 0 && at_once < items.size())
    return {
        "some of these keys belong to each member and apply at once, and the others are shared by all; set "
        "them separately",
        false};
  return {outer_sync::problem_of_change(experiment.outer, before, items), at_once > 0};
}

RunConfig run_config_at(const RunConfig& base, const outer_sync::protocol::Settings& settings,
                        std::uint64_t step) {
  struct Section {
    RunConfig run;
    void serialize(config::Archive& ar) { ar.section("run", run); }
  } section{base};
  config::Source source;
  for (const auto* key : {"run.eval_every", "run.checkpoint_every"}) {
    const auto value = outer_sync::protocol::changed_value(settings, key, step);
    if (!value.empty()) source.set(std::string(key) + "=" + value);
  }
  config::Reader reader(source);
  section.serialize(reader);
  reader.finish();
  return section.run;
}

namespace {

/// Makes each path of a mixture absolute.
void anchor_mixture(data::DataConfig& data, const config::Source& source) {
  if (data.mixture.empty()) return;
  auto parts = data::parse_mixture(data.mixture);
  const auto* entry = source.find("data.mixture");
  for (auto& part : parts) {
    if (entry != nullptr)
      part.path = std::filesystem::absolute(entry->base / part.path).lexically_normal().string();
  }
  data.mixture = data::to_string(parts);
}

/// Reads a config without sites, or that of one site.
Experiment read_experiment(const config::Source& source, bool needs_data) {
  auto experiment = config::read<Experiment>(source);
  if (!experiment.data.is_stream()) anchor(experiment.data.path, source, "data.path");
  anchor(experiment.data.store, source, "data.store");
  anchor_mixture(experiment.data, source);
  anchor(experiment.outer.log, source, "outer.log");
  anchor(experiment.network.secret, source, "network.secret");
  anchor(experiment.automatic.links, source, "outer.auto.links");
  anchor(experiment.trainer.init_from, source, "trainer.init_from");
  const auto& tokenizer = experiment.data.tokenizer;
  if (tokenizer != "bytes" && !tokenizer.starts_with("vocab:"))
    anchor(experiment.data.tokenizer, source, "data.tokenizer");
  check_name("run.name", experiment.run.name);
  if (!experiment.worker.words().empty()) needs_data = false;  // that program has its own data
  if (needs_data && experiment.data.path.empty() && experiment.data.mixture.empty())
    throw Error(ErrorKind::config, "data.path is empty; expected a text file, a folder or a .bin file");
  if (needs_data) experiment.data.check();
  if (experiment.run.keep_checkpoints == 1)
    throw Error(ErrorKind::config,
                "run.keep_checkpoints is 1; expected 2 or more, or 0 to keep all: while replicas write the "
                "newest, all of them have only the previous one");
  experiment.model.resolve(experiment.data.seq_len);
  experiment.outer.resolve();
  experiment.outer.take_replicas(experiment.replicas);
  experiment.outer.steps = experiment.run.steps;
  experiment.network.check();
  experiment.metrics.check();
  experiment.replica.check(experiment.inner.batch);
  if (experiment.outer.data_parallel() && experiment.replica.ranks > 1)
    throw Error(
        ErrorKind::config,
        "replica.ranks is " + std::to_string(experiment.replica.ranks) +
            " and outer.method is data_parallel; expected 1: with data_parallel every process is a replica");
  const auto open = experiment.network.reachable();
  if (experiment.outer.data_parallel() && !open.empty() && !experiment.network.insecure)
    throw Error(ErrorKind::config, "outer.method is data_parallel and " + open +
                                       ": Gloo's connections are neither encrypted nor authenticated; pass "
                                       "--insecure if the network is trusted");
  if (experiment.outer.data_parallel() && !experiment.network.listens())
    throw Error(ErrorKind::config,
                "network.listen is none and outer.method is data_parallel; expected ADDRESS:PORT: with Gloo "
                "every worker must have an address that the others can dial");
  if (experiment.inner.is_muon() && experiment.outer.data_parallel() && experiment.replicas > 1)
    throw Error(
        ErrorKind::config,
        fmt::format("inner.optimizer is muon, outer.method is data_parallel and replicas is {0}; expected "
                    "replicas 1 with {0} times the batch, which computes the same: the replicas' steps must "
                    "be bit-identical on any processor, and Muon's are not",
                    experiment.replicas));
  if (experiment.inner.is_muon() && !experiment.outer.data_parallel() && experiment.outer.warmup_steps > 0)
    throw Error(ErrorKind::config,
                fmt::format("inner.optimizer is muon and outer.warmup_steps is {}; expected 0: warm-up steps "
                            "must be bit-identical on any processor, and Muon's are not",
                            experiment.outer.warmup_steps));
  if (experiment.inner.is_muon() && experiment.replica.zero)
    throw Error(ErrorKind::config,
                "inner.optimizer is muon and replica.zero is true; expected false: Muon orthogonalises whole "
                "matrices, which cannot be split");
  if (experiment.reducers > 0 && experiment.outer.data_parallel()) {
    throw Error(ErrorKind::config,
                "reducers is " + std::to_string(experiment.reducers) +
                    " and outer.method is data_parallel; expected 0: reducers would have nothing to reduce");
  }
  // The data-parallel baseline averages gradients at every step, as other methods do in the warm-up.
  if (experiment.outer.data_parallel()) experiment.outer.warmup_steps = experiment.run.steps;
  return experiment;
}

/// Stores worker.command, of the run and of sites, as one JSON text: the archive has no lists of texts.
void write_commands_as_text(config::Source& source) {
  for (auto entry : std::vector(source.entries())) {
    const bool of_site = entry.key.starts_with("sites.") && entry.key.ends_with(".worker.command");
    if (!entry.is_list || (entry.key != "worker.command" && !of_site)) continue;
    entry.values = {nlohmann::json(entry.values).dump()};
    entry.is_list = false;
    source.put(std::move(entry));
  }
}

/// Sets `replicas` to the sum over all sites. Throws Error(config) if another number is given.
void put_replicas(config::Source& source, const std::vector<Site>& sites) {
  std::int64_t sum = 0;
  std::string parts;
  for (const auto& site : sites) {
    sum += site.replicas;
    parts += fmt::format("{}{}: {}", parts.empty() ? "" : ", ", site.name, site.replicas);
  }
  const auto text = std::to_string(sum);
  const auto* given = source.find("replicas");
  if (given != nullptr && given->values != std::vector{text}) {
    throw Error(
        ErrorKind::config,
        fmt::format("replicas is {} ({}) and the sites have {} ({}); leave replicas out when there are sites",
                    given->values.empty() ? "" : given->values.front(), given->place, sum, parts));
  }
  if (given == nullptr) source.put({"replicas", {text}, false, false, "sites", {}});
}

void check_equal_batches(const std::vector<Site>& sites, const std::vector<Experiment>& at_sites) {
  for (std::size_t i = 1; i < sites.size(); ++i) {
    if (!at_sites[i].outer.data_parallel() || at_sites[i].inner.batch == at_sites[0].inner.batch) continue;
    throw Error(ErrorKind::config,
                fmt::format("inner.batch is {} at site {} and {} at site {}; expected equal batches "
                            "with outer.method data_parallel, which averages gradients without weights",
                            at_sites[0].inner.batch, sites[0].name, at_sites[i].inner.batch, sites[i].name));
  }
}

}  // namespace

Experiment load_experiment(const std::filesystem::path& file, const std::vector<std::string>& assignments,
                           const std::optional<WorkerPlace>& worker, Purpose purpose) {
  return load_experiment(purpose == Purpose::benchmark && file.empty()
                             ? config::Source::from_text("", "no file")
                             : config::Source::from_file(file),
                         assignments, worker, purpose);
}

Experiment load_experiment(config::Source source, const std::vector<std::string>& assignments,
                           const std::optional<WorkerPlace>& worker, Purpose purpose) {
  for (const auto& assignment : assignments) source.set(assignment);
  write_commands_as_text(source);
  Experiment sample;
  auto sites = take_sites(source, config::list(sample));
  if (!sites.empty()) put_replicas(source, sites);
  std::vector<Experiment> at_sites;
  const bool chooses = purpose == Purpose::training || purpose == Purpose::own_data;
  const bool needs_data = purpose == Purpose::training;
  at_sites.reserve(sites.size());
  for (const auto& site : sites) at_sites.push_back(read_experiment(at_site(source, site), needs_data));
  check_equal_batches(sites, at_sites);
  const auto* site = worker ? site_of(sites, worker->name, worker->site) : nullptr;
  auto experiment = site == nullptr ? read_experiment(source, needs_data && sites.empty())
                                    : at_sites[static_cast<std::size_t>(site - sites.data())];
  // The run's folder gets absolute paths.
  for (std::size_t i = 0; i < sites.size(); ++i) {
    if (sites[i].is_elsewhere()) continue;  // its paths are that machine's
    for (const auto& item : config::list(at_sites[i])) {
      const auto setting = std::ranges::find(sites[i].settings, item.key, &config::Source::Entry::key);
      if (setting != sites[i].settings.end() && !setting->is_list && !setting->by_step)
        setting->values = {item.value};
    }
  }
  if (site != nullptr) experiment.site = site->name;
  experiment.sites = std::move(sites);
  if (chooses && experiment.automatic.utilization > 0) {
    check_automatic(experiment);
    if (!experiment.automatic.at_start) return experiment;
    auto general = read_experiment(source, false);  // no site's own settings may count
    general.sites = experiment.sites;
    choose_settings(experiment, std::move(general));
  }
  return experiment;
}

std::vector<config::Item> items_of(Experiment& experiment) {
  auto items = config::list(experiment);
  for (auto& site : experiment.sites) {
    const auto prefix = fmt::format("sites.{}.", site.name);
    for (auto& item : own_items(site, false)) {
      item.key.insert(0, prefix);
      items.push_back(std::move(item));
    }
    for (const auto& setting : site.settings) {
      auto item = *std::ranges::find(items, setting.key, &config::Item::key);
      item.key.insert(0, prefix);
      item.value = setting.values.front();
      items.push_back(std::move(item));
    }
  }
  return items;
}

std::string to_yaml(Experiment& experiment) { return config::yaml_of(items_of(experiment)); }

std::string reference() {
  Experiment experiment;
  Site site;
  auto items = config::list(experiment);
  for (auto& item : own_items(site, true)) {
    item.key.insert(0, "sites.NAME.");
    items.push_back(std::move(item));
  }
  return config::reference_of(items);
}

config::SharedItems shared_items(Experiment& experiment) {
  auto items = config::shared_items(experiment);
  if (experiment.outer.data_parallel())
    items.emplace_back("inner.batch", std::to_string(experiment.inner.batch));
  return items;
}

std::vector<std::string> worker_names(const Experiment& experiment) {
  std::vector<std::string> names;
  for (const auto& site : experiment.sites) {
    for (auto& name : site.workers()) names.push_back(std::move(name));
  }
  if (!names.empty()) return names;
  const auto digits = std::to_string(experiment.replicas - 1).size();
  for (std::int64_t m = 0; m < experiment.replicas; ++m)
    names.push_back(fmt::format("replica-{:0{}}", m, digits));
  return names;
}

}  // namespace isthmus::app
