#pragma once
// What `isthmus compare` is asked for: its file, read and checked, down to the config of every run.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "compare/faults.h"
#include "compare/gates.h"
#include "run/experiment.h"

namespace isthmus::app {

/// The file's own keys, beside the sections `settings`, `arms` and `sizes`.
struct ComparisonKeys {
  std::string name, out = "runs", base, baseline;
  std::vector<std::int64_t> seeds = {1};
  double target_loss = 0;
  struct Budget {
    double tokens = 0;
    config::Duration time;
    void serialize(config::Archive& ar);
  } budget;
  /// Runs that are stopped since they have no hope.
  struct Hopeless {
    double after = 0;
    double margin = 0.1;
    void serialize(config::Archive& ar);
  } hopeless;
  void serialize(config::Archive& ar);
};

struct Arm {
  std::string name, about;
  std::vector<config::Source::Entry> settings;  ///< over those of all arms, by their general keys
  std::vector<Fault> faults;
  /// Folders of finished runs, or somebody else's curves: nothing is run then.
  std::vector<std::filesystem::path> folders, curves;
  [[nodiscard]] bool is_run() const { return folders.empty() && curves.empty(); }
};

struct RunPlan {
  std::size_t arm = 0;
  std::int64_t seed = 0;
  Experiment experiment;      ///< as it is to be run, with its name, seed and folder
  bool is_read_only = false;  ///< somebody made it: it is read, and never run
  [[nodiscard]] const std::string& name() const { return experiment.run.name; }
  [[nodiscard]] std::filesystem::path folder() const { return experiment.folder(); }
};

struct Comparison {
  ComparisonKeys keys;
  std::string size;              ///< of `sizes`; empty where there are none
  std::filesystem::path folder;  ///< absolute
  std::filesystem::path base;    ///< absolute; empty where nothing is run
  std::vector<Arm> arms;         ///< in the file's order
  std::size_t baseline = 0;      ///< index of the arm that the others are compared with
  std::vector<Gate> gates;       ///< in the file's order
  std::vector<RunPlan> runs;     ///< seed by seed, the baseline first
};

/// `size` empty: the first one of the file. `assignments` go over all that the file says. Throws
/// Error(config) naming place, value and what was expected.
[[nodiscard]] Comparison load_comparison(const std::filesystem::path& file, const std::string& size,
                                         const std::vector<std::string>& assignments);

/// The same for a certificate: a file that is an experiment is compared with its baselines. Throws
/// Error(config) for a comparison without gates too.
[[nodiscard]] Comparison load_certified(const std::filesystem::path& file, const std::string& size,
                                        const std::vector<std::string>& assignments);

/// Index of the arm of that name. Throws Error(config) that says `what` names no arm.
[[nodiscard]] std::size_t arm_named(const std::string& name, const std::string& what,
                                    const std::vector<Arm>& arms);

/// Of the keys that all replicas share; name and seed are left out, so that it is one for all runs of an arm.
[[nodiscard]] Digest config_fingerprint(const RunPlan& run);

/// Tokens of one inner step of all replicas together.
[[nodiscard]] double tokens_per_step(const Experiment& experiment);

}  // namespace isthmus::app
