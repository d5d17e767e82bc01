#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "isthmus/base/error.h"
#include "run/experiment/current_names.h"
#include "run/experiment/experiment.h"
#include "run/experiment/removed_keys.h"
#include "run/process/names.h"

namespace isthmus::app {

namespace {

/// Makes a relative path absolute: from the folder of the file that sets it, or the working directory for
/// --set.
void anchor(std::string& path, const config::Source& source, std::string_view key) {
  if (path.empty()) return;
  for (const auto& entry : source.entries()) {
    if (entry.key == key) path = std::filesystem::absolute(entry.base / path).lexically_normal().string();
  }
}

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

/// The ranks of another program divide their work themselves.
void check_ranks_of_command(const trainer::ReplicaConfig& replica) {
  const auto refuse = [](const char* key, const std::string& value, const char* expected) {
    config_error(
        fmt::format("replica.{} is {} and worker.command is set; expected {}: the ranks of another "
                    "program divide their work themselves",
                    key, value, expected));
  };
  if (replica.ranks_per_sequence > 1)
    refuse("ranks_per_sequence", std::to_string(replica.ranks_per_sequence), "1");
  if (replica.average_every > 1) refuse("average_every", std::to_string(replica.average_every), "1");
  if (!replica.machines.empty()) refuse("machines", replica.machines, "no machines");
}

void check_data_parallel(const Experiment& experiment) {
  if (experiment.replica.ranks > 1)
    config_error(fmt::format(
        "replica.ranks is {} and outer.method is data_parallel; expected 1: with data_parallel every process "
        "is a replica",
        experiment.replica.ranks));
  const auto open = experiment.network.reachable();
  if (!open.empty() && !experiment.network.insecure)
    config_error(fmt::format(
        "outer.method is data_parallel and {}: Gloo's connections are neither encrypted nor authenticated; "
        "pass --insecure if the network is trusted",
        open));
  if (!experiment.network.listens())
    config_error(
        "network.listen is none and outer.method is data_parallel; expected ADDRESS:PORT: with Gloo every "
        "worker must have an address that the others can dial");
  if (!experiment.network.calendar.empty())
    config_error(
        "network.calendar is set and outer.method is data_parallel; expected no calendar: Gloo sends "
        "gradients "
        "at every step, at any time");
  if (experiment.reducers > 0)
    config_error(fmt::format(
        "reducers is {} and outer.method is data_parallel; expected 0: reducers would have nothing to reduce",
        experiment.reducers));
}

void check_audit(const Experiment& experiment) {
  if (experiment.outer.data_parallel())
    config_error(
        "run.audit is true and outer.method is data_parallel; expected false: an audit compares "
        "contributions to rounds, and data-parallel runs have no rounds");
  if (experiment.outer.log.empty())
    config_error(
        "run.audit is true and outer.log is empty; expected a folder: an audit needs the results that "
        "the replicas applied");
  if (!experiment.worker.words().empty())
    config_error(
        "run.audit is true and worker.command is set; expected false: only steps of `isthmus worker` can be "
        "run again");
  if (experiment.outer.gossip_every > 0)
    config_error(
        fmt::format("run.audit is true and outer.gossip_every is {}; expected 0: a member's steps also "
                    "depend on what its partners have sent, which is not kept",
                    experiment.outer.gossip_every));
  if (experiment.data.is_stream())
    config_error(
        "run.audit is true and data.path is a stream; expected files: a stream cannot be read "
        "again");
}

void check_muon(const Experiment& experiment) {
  const bool parallel = experiment.outer.data_parallel();
  if (parallel && experiment.replicas > 1)
    config_error(fmt::format(
        "inner.optimizer is muon, outer.method is data_parallel and replicas is {0}; expected replicas 1 "
        "with {0} times the batch, which computes the same: the replicas' steps must be bit-identical on any "
        "processor, and Muon's are not",
        experiment.replicas));
  if (!parallel && experiment.outer.warmup_steps > 0)
    config_error(
        fmt::format("inner.optimizer is muon and outer.warmup_steps is {}; expected 0: warm-up steps must be "
                    "bit-identical on any processor, and Muon's are not",
                    experiment.outer.warmup_steps));
  if (experiment.replica.zero)
    config_error(
        "inner.optimizer is muon and replica.zero is true; expected false: Muon orthogonalises whole "
        "matrices, which cannot be split");
}

/// Derives values from other keys, and rejects what cannot work.
void resolve(Experiment& experiment, bool needs_data) {
  check_name("run.name", experiment.run.name);
  if (!experiment.worker.words().empty()) needs_data = false;  // that program has its own data
  if (needs_data && experiment.data.path.empty() && experiment.data.mixture.empty())
    config_error("data.path is empty; expected a text file, a folder or a .bin file");
  if (needs_data) experiment.data.check();
  if (experiment.run.keep_checkpoints == 1)
    config_error(
        "run.keep_checkpoints is 1; expected 2 or more, or 0 to keep all: while replicas write the newest, "
        "all of them have only the previous one");
  experiment.model.resolve(experiment.data.seq_len);
  experiment.outer.resolve();
  experiment.outer.take_replicas(experiment.replicas);
  experiment.outer.steps = experiment.run.steps;
  experiment.network.check();
  experiment.object_store.check();
  if (experiment.network.mailbox && !experiment.object_store.is_used())
    config_error(
        "network.mailbox is true and object_store.url is empty; expected the URL of a bucket or a shared "
        "folder");
  experiment.metrics.check();
  experiment.dashboard.check();
  experiment.replica.check(experiment.inner.batch);
  if (needs_data) experiment.replica.check_sequences(experiment.data.seq_len, experiment.model);
  if (!experiment.worker.words().empty()) check_ranks_of_command(experiment.replica);
  if (experiment.outer.data_parallel()) check_data_parallel(experiment);
  if (experiment.inner.is_muon()) check_muon(experiment);
  if (experiment.run.audit) check_audit(experiment);
  if (experiment.automatic.utilization > 0 && experiment.outer.gossip_every > 0)
    config_error(fmt::format(
        "outer.auto.utilization is set and outer.gossip_every is {}; expected gossip_every 0: outer.auto "
        "chooses sync_every and sync_delay without regard to exchanges in pairs",
        experiment.outer.gossip_every));
  // The data-parallel baseline averages gradients at every step, as other methods do in the warm-up.
  if (experiment.outer.data_parallel()) experiment.outer.warmup_steps = experiment.run.steps;
}

/// Reads a config without sites, or that of one site.
Experiment read_experiment(const config::Source& source, bool needs_data) {
  auto experiment = config::read<Experiment>(source);
  if (!experiment.data.is_stream()) anchor(experiment.data.path, source, "data.path");
  if (!data::is_live(experiment.data.val_path)) anchor(experiment.data.val_path, source, "data.val_path");
  anchor(experiment.data.store, source, "data.store");
  anchor_mixture(experiment.data, source);
  anchor(experiment.outer.log, source, "outer.log");
  anchor(experiment.network.secret, source, "network.secret");
  auto& object_store = experiment.object_store;
  if (object_store.url.find("://") == std::string::npos) anchor(object_store.url, source, "object_store.url");
  if (!object_store.credentials.starts_with("~/"))
    anchor(object_store.credentials, source, "object_store.credentials");
  anchor(object_store.ca, source, "object_store.ca");
  anchor(experiment.automatic.links, source, "outer.auto.links");
  anchor(experiment.trainer.init_from, source, "trainer.init_from");
  const auto& tokenizer = experiment.data.tokenizer;
  if (tokenizer != "bytes" && !tokenizer.starts_with("vocab:"))
    anchor(experiment.data.tokenizer, source, "data.tokenizer");
  resolve(experiment, needs_data);
  return experiment;
}

/// Stores lists, of the run and of sites, as text, since the archive has no lists: worker.command as JSON,
/// replica.machines with commas.
void write_lists_as_text(config::Source& source) {
  const auto is = [](const config::Source::Entry& entry, std::string_view key) {
    return entry.key == key ||
           (entry.key.starts_with("sites.") && entry.key.ends_with("." + std::string(key)));
  };
  for (auto entry : std::vector(source.entries())) {
    if (!entry.is_list) continue;
    if (is(entry, "worker.command"))
      entry.values = {nlohmann::json(entry.values).dump()};
    else if (is(entry, "replica.machines"))
      entry.values = {fmt::format("{}", fmt::join(entry.values, ", "))};
    else
      continue;
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
    config_error(
        fmt::format("replicas is {} ({}) and the sites have {} ({}); leave replicas out when there are sites",
                    given->values.empty() ? "" : given->values.front(), given->place, sum, parts));
  }
  if (given == nullptr) source.put({"replicas", {text}, false, false, "sites", {}});
}

void check_equal_batches(const std::vector<Site>& sites, const std::vector<Experiment>& at_sites) {
  for (std::size_t i = 1; i < sites.size(); ++i) {
    if (!at_sites[i].outer.data_parallel() || at_sites[i].inner.batch == at_sites[0].inner.batch) continue;
    config_error(
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
  source = with_current_names(without_removed_keys(source));
  write_lists_as_text(source);
  Experiment sample;
  auto sites = take_sites(source, config::list(sample));
  if (!sites.empty()) put_replicas(source, sites);
  std::vector<Experiment> at_sites;
  const bool needs_data = purpose == Purpose::training;
  at_sites.reserve(sites.size());
  for (auto& site : sites) {
    at_sites.push_back(read_experiment(at_site(source, site), needs_data));
    site.silence = at_sites.back().launch.silence;
    site.has_command = !at_sites.back().worker.words().empty();
  }
  check_equal_batches(sites, at_sites);
  for (std::size_t i = 0; i < sites.size(); ++i)
    at_sites[i].replica.check_own_machines("sites." + sites[i].name + ".replicas", sites[i].replicas);
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
  return experiment;
}

}  // namespace isthmus::app
