#pragma once
// One experiment: all keys of a config file.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/config.h"
#include "isthmus/data/config.h"
#include "isthmus/data/corpus.h"
#include "isthmus/data/loader.h"
#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/trainer/config.h"
#include "run/metrics_config.h"
#include "run/sites.h"

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
  std::string on_event;
  bool gather = true;
  config::Size gather_limit{256'000'000};
  config::Size disk_low{2'000'000'000};
  config::Duration stop_grace{60};
  /// Not only at the end.
  [[nodiscard]] bool writes_checkpoints_meanwhile() const {
    return checkpoint_every > 0 || checkpoint_interval.seconds > 0;
  }
  void serialize(config::Archive& ar);
};

/// Settings of the outer loop that follow from links and the time of a step, in place of those that are
/// written.
struct AutoConfig {
  double utilization = 0;
  bool at_start = true;
  config::Duration step_time;
  std::string links;
  bool in_run = true;
  config::Duration least_between{60};
  void serialize(config::Archive& ar);
};

/// Of `launch` itself; a site's own launcher is its LauncherConfig.
struct LaunchDefaults {
  config::Duration silence{43200};
  void serialize(config::Archive& ar);
};

/// Who trains in the place of `isthmus worker`.
struct WorkerConfig {
  std::string command;
  void serialize(config::Archive& ar);
  /// Program and arguments; none where `isthmus worker` trains itself.
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
  MetricsConfig metrics;
  WorkerConfig worker;
  LaunchDefaults launch;
  void serialize(config::Archive& ar);

  std::string auto_note;    ///< what outer.auto has chosen, and why; empty where it has not
  std::vector<Site> sites;  ///< no key of its own: its keys depend on the sites' names
  std::string site;         ///< that this is the config of; no key either; empty: of none

  [[nodiscard]] std::filesystem::path folder() const { return std::filesystem::path(run.out) / run.name; }
};

/// Which worker a config is for; `site` may be empty, and follows from the name then.
struct WorkerPlace {
  std::string name, site;
};

/// What the config asks of a loader; which sequences it takes says its source.
[[nodiscard]] data::LoaderOptions loader_options(const Experiment& experiment);

/// Of `data.source: pipe`: where the worker of this name keeps its stream, what is held out, and two batches
/// that are read ahead. Nothing for files. `say` is left to who makes it.
[[nodiscard]] std::optional<data::StreamOptions> stream_options(const Experiment& experiment,
                                                                const std::string& name);

/// What an experiment is read for: a benchmark has no data, and may have no file; nor needs a trained model
/// any data. `own_data`: a run whose data are not read here, but by a program that trains on its own.
enum class Purpose { training, benchmark, inference, own_data };

/// Reads a config file and `--set` assignments, makes paths in it relative to the file that names them, fills
/// in what follows from other keys and refuses what cannot work, at any of its sites. With a worker it is the
/// config as it is at its site. Throws Error(config).
[[nodiscard]] Experiment load_experiment(const std::filesystem::path& file,
                                         const std::vector<std::string>& assignments,
                                         const std::optional<WorkerPlace>& worker = std::nullopt,
                                         Purpose purpose = Purpose::training);
/// Of what was read already.
[[nodiscard]] Experiment load_experiment(config::Source source, const std::vector<std::string>& assignments,
                                         const std::optional<WorkerPlace>& worker, Purpose purpose);

/// Every key, and those of the sites by their full names.
[[nodiscard]] std::vector<config::Item> items_of(Experiment& experiment);
/// The same in YAML, as `load_experiment` reads it back.
[[nodiscard]] std::string to_yaml(Experiment& experiment);
/// The reference of all keys in Markdown.
[[nodiscard]] std::string reference();
/// Keys that must be the same at all members: also the batch, where gradients are averaged as if all were
/// equal.
[[nodiscard]] config::SharedItems shared_items(Experiment& experiment);
/// Names of the workers that the run begins with.
[[nodiscard]] std::vector<std::string> worker_names(const Experiment& experiment);

/// What every process of a run says of itself first; who trains adds its model. `build`: of this
/// binary.
[[nodiscard]] outer_sync::protocol::Hello hello_of(Experiment& experiment, const std::string& name,
                                                   const std::string& build);

/// When an owner may close a chunk, and with how many members a view may be formed.
[[nodiscard]] outer_sync::protocol::ClosingRule closing_rule(const Experiment& experiment);

/// Whether these values may be set in mid-run, beside what was set before.
[[nodiscard]] outer_sync::protocol::ChangeVerdict judge_change(const Experiment& experiment,
                                                               const outer_sync::protocol::Settings& before,
                                                               const config::SharedItems& items);

/// The run's keys as they are at that step, after what was set in mid-run. Throws Error(config) for values
/// that cannot be.
[[nodiscard]] RunConfig run_config_at(const RunConfig& base, const outer_sync::protocol::Settings& settings,
                                      std::uint64_t step);

/// Of one replica's stochastic rounding: different from the others', and the same when it comes back.
[[nodiscard]] std::uint64_t noise_seed(const Experiment& experiment, const std::string& name);

/// Throws Error(config) naming `what` unless the name can be a folder's: letters, digits, '.', '_' and '-'.
void check_name(const std::string& what, const std::string& name);
/// The same of a member's name, which must not be that of a file or folder of the run's own beside it.
void check_member_name(const std::string& what, const std::string& name);

}  // namespace isthmus::app
