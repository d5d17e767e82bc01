#pragma once
// One experiment: all keys of a config file.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/config.h"
#include "isthmus/data/config.h"
#include "isthmus/data/corpus.h"
#include "isthmus/data/loader.h"
#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/net/mailbox/mailbox_place.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/trainer/config.h"
#include "run/experiment/dashboard_config.h"
#include "run/experiment/metrics_config.h"
#include "run/experiment/object_store_config.h"
#include "run/experiment/sites.h"

namespace isthmus::app {

struct RunConfig {
  std::string name = "run";
  std::string out = "runs";
  std::int64_t steps = 1000;
  std::int64_t seed = 1;
  std::int64_t stop_after = 0;
  std::int64_t eval_every = 100;
  std::int64_t eval_sequences = 256;
  std::int64_t checkpoint_every = 0;
  config::Duration checkpoint_interval{900};
  std::int64_t keep_checkpoints = 3;
  std::int64_t keep_every = 0;
  std::int64_t sample_tokens = 240;
  std::int64_t trace_steps = 400;
  std::int64_t record_outer_gradients = 0;
  std::int64_t restarts = 100;
  bool audit = false;
  std::string on_event;
  std::string wandb = "off";
  config::Size gather_limit{256'000'000};
  config::Size disk_low{2'000'000'000};
  config::Duration stop_grace{60};
  /// Whether workers' metrics and log lines are copied to the coordinator's run folder.
  [[nodiscard]] bool gathers() const { return gather_limit.bytes > 0; }
  /// Whether the coordinator logs the run to Weights & Biases.
  [[nodiscard]] bool logs_to_wandb() const { return wandb != "off"; }
  /// The last step that replicas make: run.stop_after may be before run.steps.
  [[nodiscard]] std::uint64_t last_step() const {
    return static_cast<std::uint64_t>(stop_after > 0 ? std::min(steps, stop_after) : steps);
  }
  /// Whether checkpoints are written before the end of the run.
  [[nodiscard]] bool writes_checkpoints_meanwhile() const {
    return checkpoint_every > 0 || checkpoint_interval.seconds > 0;
  }
  void serialize(config::Archive& ar);
};

/// Choice of outer-loop settings from links and step time, instead of those in the config
/// (plan/choose.h).
struct AutoConfig {
  double utilization = 0;
  bool at_start = true;
  config::Duration step_time;
  std::string links;
  config::Duration min_interval{60};
  void serialize(config::Archive& ar);
};

/// Settings of `launch` that are not about one site's machine.
struct LaunchDefaults {
  config::Duration silence{43200};
  void serialize(config::Archive& ar);
};

/// The program that trains instead of `isthmus worker`.
struct WorkerConfig {
  std::string command;
  void serialize(config::Archive& ar);
  /// Program and arguments; empty if `isthmus worker` itself trains.
  [[nodiscard]] std::vector<std::string> words() const;
};

struct Experiment {
  RunConfig run;
  std::int64_t replicas = 2;
  std::int64_t reducers = 0;
  trainer::DeviceConfig device;
  trainer::ModelConfig model;
  data::DataConfig data;
  trainer::InnerConfig inner;
  trainer::TrainerConfig trainer;
  trainer::ReplicaConfig replica;
  outer_sync::OuterConfig outer;
  AutoConfig automatic;
  outer_sync::JoinConfig join;
  outer_sync::NetworkConfig network;
  ObjectStoreConfig object_store;
  MetricsConfig metrics;
  DashboardConfig dashboard;
  WorkerConfig worker;
  LaunchDefaults launch;
  void serialize(config::Archive& ar);

  std::vector<Site> sites;  ///< not a key: its keys depend on the sites' names
  std::string site;         ///< site of this config; not a key; empty: no site

  [[nodiscard]] std::filesystem::path folder() const { return std::filesystem::path(run.out) / run.name; }
};

/// The worker that a config is for; an empty `site` follows from the name.
struct WorkerPlace {
  std::string name, site;
};

/// Loader options of the config. The loader's sample source decides which sequences it reads.
[[nodiscard]] data::LoaderOptions loader_options(const Experiment& experiment);

/// Stream options if the data is a stream: where the worker of this name stores it, the held-out part, and
/// two batches of read-ahead. nullopt for files. The caller sets `say`.
[[nodiscard]] std::optional<data::StreamOptions> stream_options(const Experiment& experiment,
                                                                const std::string& name);

/// The use of an experiment that is read. A benchmark needs no data and no file, inference no data. own_data:
/// a run that trains on data which another program reads.
enum class Purpose { training, benchmark, inference, own_data };

/// Reads a config file and `--set` assignments, makes paths in it relative to the file that names them,
/// derives values from other keys and rejects what cannot work at any of its sites. With a worker, returns
/// the config of that worker's site. Throws Error(config).
[[nodiscard]] Experiment load_experiment(const std::filesystem::path& file,
                                         const std::vector<std::string>& assignments,
                                         const std::optional<WorkerPlace>& worker = std::nullopt,
                                         Purpose purpose = Purpose::training);
/// The same for a source that was read already.
[[nodiscard]] Experiment load_experiment(config::Source source, const std::vector<std::string>& assignments,
                                         const std::optional<WorkerPlace>& worker, Purpose purpose);

/// Sets run.out and run.name so that the run's folder is this one, which may have moved since its config was
/// written.
void move_to(Experiment& experiment, const std::filesystem::path& folder);

/// Every key; the sites' keys by their full names.
[[nodiscard]] std::vector<config::Item> items_of(Experiment& experiment);
/// The same in YAML, as `load_experiment` reads it back.
[[nodiscard]] std::string to_yaml(Experiment& experiment);
/// The reference of all keys in Markdown.
[[nodiscard]] std::string reference();
/// Keys that must be equal at all members. In data-parallel runs this includes the batch, because gradients
/// are averaged without weights.
[[nodiscard]] config::SharedItems shared_items(Experiment& experiment);
/// Digest of these keys.
[[nodiscard]] Digest fingerprint(const Experiment& experiment);
/// The experiment for a machine that may have an older build: with names that never change.
[[nodiscard]] Experiment with_stored_names(Experiment experiment);
/// Names of the workers that the run starts with.
[[nodiscard]] std::vector<std::string> worker_names(const Experiment& experiment);
/// Names of the reducers that `launch` starts.
[[nodiscard]] std::vector<std::string> reducer_names(const Experiment& experiment);

/// The first message of every process of a run; a trainer adds its model. `build`: of this binary.
[[nodiscard]] outer_sync::protocol::Hello hello_of(Experiment& experiment, const std::string& name,
                                                   const std::string& build);

/// When an owner may close a chunk, and how many members a view needs.
[[nodiscard]] outer_sync::protocol::ClosingRule closing_rule(const Experiment& experiment);

/// With network.mailbox: the store and the run in it.
[[nodiscard]] std::optional<outer_sync::MailboxPlace> mailbox_place(const Experiment& experiment);

/// Seed of one replica's stochastic rounding: differs from the others', and stays the same when the replica
/// comes back.
[[nodiscard]] std::uint64_t noise_seed(const Experiment& experiment, const std::string& name);

}  // namespace isthmus::app
