#pragma once
// The input of `isthmus compare`: its file, read and checked, down to the config of every run.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "compare/arms/faults.h"
#include "compare/arms/gates.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

/// The file's own keys, without the sections `settings`, `arms`, `gates` and `sizes`.
struct ComparisonKeys {
  std::string name, out = "runs", base, baseline;
  std::vector<std::int64_t> seeds = {1};
  double target_loss = 0;
  struct Budget {
    double tokens = 0;
    config::Duration time;
    void serialize(config::Archive& ar);
  } budget;
  /// When to stop runs that are too far behind the baseline.
  struct Hopeless {
    double after = 0;
    double margin = 0.1;
    void serialize(config::Archive& ar);
  } hopeless;
  void serialize(config::Archive& ar);
};

struct Arm {
  std::string name, about;
  std::vector<config::Source::Entry> settings;  ///< override those of all arms; full keys of the config
  std::vector<Fault> faults;
  /// Folders of finished runs, or curves made elsewhere. With either, nothing is run for this arm.
  std::vector<std::filesystem::path> folders, curves;
  [[nodiscard]] bool is_run() const { return folders.empty() && curves.empty(); }
};

struct RunPlan {
  std::size_t arm = 0;
  std::int64_t seed = 0;
  Experiment experiment;      ///< the config to run, with its name, seed and folder
  bool is_read_only = false;  ///< made before this comparison: read, and never run
  [[nodiscard]] const std::string& name() const { return experiment.run.name; }
  [[nodiscard]] std::filesystem::path folder() const { return experiment.folder(); }
};

struct Comparison {
  ComparisonKeys keys;
  std::string size;              ///< one of `sizes`; empty without sizes
  std::filesystem::path folder;  ///< absolute
  std::filesystem::path base;    ///< absolute; empty if nothing is run
  std::vector<Arm> arms;         ///< in the file's order
  std::size_t baseline = 0;      ///< index of the arm to which the others are compared
  std::vector<Gate> gates;       ///< in the file's order
  std::vector<RunPlan> runs;     ///< seed by seed, the baseline first
};

/// `size` empty: the first in the file. `assignments` override the file. Throws Error(config) with place,
/// value and what was expected.
[[nodiscard]] Comparison load_comparison(const std::filesystem::path& file, const std::string& size,
                                         const std::vector<std::string>& assignments);

/// The same for a certificate: compares an experiment with its baselines. Also throws Error(config) for a
/// comparison without gates.
[[nodiscard]] Comparison load_certified(const std::filesystem::path& file, const std::string& size,
                                        const std::vector<std::string>& assignments);

/// Index of the arm with this name. Throws Error(config) if no arm has it; the message begins with `what`.
[[nodiscard]] std::size_t arm_named(const std::string& name, const std::string& what,
                                    const std::vector<Arm>& arms);

/// Fingerprint of the keys that all replicas share, without name and seed: equal for all runs of an arm.
[[nodiscard]] Digest config_fingerprint(const RunPlan& run);

/// Tokens of one inner step of all replicas together.
[[nodiscard]] double tokens_per_step(const Experiment& experiment);

}  // namespace isthmus::app
