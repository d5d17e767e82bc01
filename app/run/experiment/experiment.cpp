#include "run/experiment/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "run/process/run_folder.h"

namespace isthmus::app {

using config::Scope;

void RunConfig::serialize(config::Archive& ar) {
  ar({"name", &name, Scope::agreed, "name of the run and of its folder"});
  ar({"out", &out, Scope::per_site, "folder in which each run makes its own folder, named after it"});
  ar({"steps", &steps, Scope::agreed, "inner steps of the run, made by every replica", 1, 1e12});
  ar({"seed", &seed, Scope::agreed, "seed of the initial parameters and the data order", 0, 9e15});
  ar({"stop_after", &stop_after, Scope::agreed,
      "step after which the run stops early, with a checkpoint; 0: none", 0, 1e12});
  ar({"eval_every", &eval_every, Scope::live,
      "steps between evaluations of the global parameters; 0: only at the beginning and the end", 0, 1e12});
  ar({"eval_sequences", &eval_sequences, Scope::agreed,
      "held-out sequences in one evaluation, shared among the replicas", 1, 1e9});
  ar({"checkpoint_every", &checkpoint_every, Scope::live,
      "steps between checkpoints; 0: only at the end, and by run.checkpoint_interval", 0, 1e12});
  ar({"checkpoint_interval", &checkpoint_interval, Scope::per_site,
      "coordinator only: time after the newest checkpoint until all replicas write the next one; 0: no "
      "checkpoints by time",
      0, 1e8});
  ar({"keep_checkpoints", &keep_checkpoints, Scope::agreed,
      "number of checkpoints that each replica keeps, the newest, 2 or more; older ones are deleted once all "
      "replicas have a newer one; 0: all are kept",
      0, 1e9});
  ar({"keep_every", &keep_every, Scope::agreed,
      "checkpoints of steps that are a multiple of this number are never deleted; 0: none", 0, 1e12});
  ar({"sample_tokens", &sample_tokens, Scope::agreed,
      "tokens of text that the run generates at its end; 0: none", 0, 100000});
  ar({"trace_steps", &trace_steps, Scope::per_site,
      "number of steps, from the first on, that each replica records in its trace.json", 0, 1e6});
  ar({"record_outer_gradients", &record_outer_gradients, Scope::per_site,
      "each replica writes every Nth outer gradient of each fragment to its folder, for comparing codecs; 0: "
      "none",
      0, 1e9});
  ar({"audit", &audit, Scope::agreed,
      "whether replicas and reducers record what they do and receive in audit.jsonl, so that `isthmus audit` "
      "can "
      "run steps of a replica again and compare what it contributed; needs outer.log"});
  ar({"restarts", &restarts, Scope::per_site,
      "maximum times that `launch` restarts each worker that was killed or crashed while the others "
      "continued; a worker that lost its connections is restarted without limit",
      0, 1e6});
  ar({"on_event", &on_event, Scope::per_site,
      "shell command that the coordinator runs for each event of the run: the event is JSON on its standard "
      "input, $1 is its kind; empty: none"});
  ar({"wandb",
      &wandb,
      Scope::per_site,
      "coordinator only: whether it logs the run to Weights & Biases, with the Python package wandb of its "
      "machine; offline: into the run's folder, for `wandb sync`",
      -config::unbounded,
      config::unbounded,
      {"off", "online", "offline"}});
  ar({"gather_limit", &gather_limit, Scope::per_site,
      "maximum size of one worker's metrics, event files and log lines in the coordinator's run folder; "
      "beyond "
      "it, further metrics of that worker are dropped and only the newer part of its log is kept. All "
      "workers together may use 16 times that; 0: none are copied",
      0, 1e18});
  ar({"disk_low", &disk_low, Scope::per_site,
      "free space on the disk of a run folder below which the coordinator warns", 0, 1e18});
  ar({"stop_grace", &stop_grace, Scope::per_site,
      "time from Ctrl-C, or the loss of the launch, until processes that still run are killed", 0.5, 86400});
}

void AutoConfig::serialize(config::Archive& ar) {
  ar({"utilization", &utilization, Scope::agreed,
      "wanted share of the time that replicas compute; settings of the outer loop are chosen to reach it "
      "(docs/plan.md); 0: none are chosen",
      0, 0.9999});
  ar({"at_start", &at_start, Scope::agreed,
      "with outer.auto.utilization: whether outer.sync_every, num_fragments, sync_delay and codec are chosen "
      "when the run starts; the config in the run's folder then has the chosen settings, and false here"});
  ar({"step_time", &step_time, Scope::agreed,
      "time of an inner step, for outer.auto; 0: the links file has one for every site", 0, 86400});
  ar({"links", &links, Scope::per_site,
      "links file for outer.auto; empty: network.emulate and network.rate describe the links"});
  ar({"min_interval", &min_interval, Scope::per_site,
      "coordinator only: minimum time between two changes of sync_every and sync_delay during the run, from "
      "the members' measurements; 0: no changes",
      0, 86400});
}

namespace {

/// Sets defaults that fit the preset, for keys that are read after it.
void use_preset(Experiment& experiment) {
  const auto training = trainer::preset_training(experiment.model.preset, experiment.run.steps);
  if (!training) return;
  experiment.data.seq_len = training->seq_len;
  experiment.inner.lr = training->lr;
  experiment.inner.warmup_steps = training->warmup_steps;
  experiment.inner.batch = training->batch;
  experiment.trainer.micro_batch = training->micro_batch;
}

}  // namespace

void Experiment::serialize(config::Archive& ar) {
  ar.section("run", run);
  ar({"replicas", &replicas, Scope::agreed, "replicas that train together", 1, 1024});
  ar({"reducers", &reducers, Scope::per_site,
      "workers that only reduce, started by `launch` in addition to the replicas", 0, 64});
  device.serialize(ar);
  const auto preset_before = model.preset;
  ar.section("model", model);
  if (model.preset != preset_before) use_preset(*this);
  ar.section("data", data);
  ar.section("inner", inner);
  ar.section("trainer", trainer);
  ar.section("replica", replica);
  ar.section("outer", outer);
  ar.section("outer.auto", automatic);
  ar.section("join", join);
  ar.section("network", network);
  ar.section("object_store", object_store);
  ar.section("metrics", metrics);
  ar.section("dashboard", dashboard);
  ar.section("worker", worker);
  ar.section("launch", launch);
}

void LaunchDefaults::serialize(config::Archive& ar) {
  ar({"silence", &silence, Scope::per_site, "time without the launch after which a site ends its workers", 1,
      1e7});
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

std::optional<outer_sync::MailboxPlace> mailbox_place(const Experiment& experiment) {
  if (!experiment.network.mailbox) return std::nullopt;
  return outer_sync::MailboxPlace{experiment.object_store.options(), experiment.run.name};
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

void move_to(Experiment& experiment, const std::filesystem::path& folder) {
  const auto full = std::filesystem::absolute(folder).lexically_normal();
  const auto clean = full.has_filename() ? full : full.parent_path();
  experiment.run.out = clean.parent_path().string();
  experiment.run.name = clean.filename().string();
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

Experiment with_stored_names(Experiment experiment) {
  experiment.outer.use_stored_names();
  return experiment;
}

Digest fingerprint(const Experiment& experiment) {
  auto stored = with_stored_names(experiment);
  return config::fingerprint(stored);
}

config::SharedItems shared_items(Experiment& experiment) {
  auto stored = with_stored_names(experiment);
  auto items = config::shared_items(stored);
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

std::vector<std::string> reducer_names(const Experiment& experiment) {
  std::vector<std::string> names;
  for (std::int64_t k = 0; k < experiment.reducers; ++k) names.push_back(fmt::format("reducer-{}", k));
  return names;
}

}  // namespace isthmus::app
