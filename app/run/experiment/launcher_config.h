#pragma once
// `sites.NAME.launch` of a config: how and where that site's workers are started.
//
//   sites:
//     eu:
//       launch: {ssh: me@eu.example, program: /opt/isthmus/isthmus, folder: runs, setup: [module load cuda]}
//     us:
//       launch: {slurm: [--partition=gpu, --gpus-per-task=4], setup: [module load cuda]}
//     ap:
//       launch: {by_hand: true}

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/config.h"

namespace isthmus::app {

struct LauncherConfig {
  enum class Kind { local, ssh, slurm, kubernetes, by_hand };

  std::string ssh;
  std::int64_t port = 0;
  std::string identity;
  std::string program = "isthmus";
  std::string folder = "runs";
  bool coordinator = false;
  bool by_hand = false;
  std::string image, cluster_namespace = "default", volume;
  std::vector<std::string> options;  ///< as for ssh -o
  std::vector<std::string> slurm;    ///< for sbatch
  std::vector<std::string> setup;    ///< shell lines
  std::vector<std::pair<std::string, std::string>> environment;

  /// Keys with plain values.
  void serialize(config::Archive& ar);
  /// Takes an entry if its key, below `launch.`, is a list or an environment variable; returns false for any
  /// other. Throws Error(config) naming its place.
  [[nodiscard]] bool take(const config::Source::Entry& entry, const std::string& key);
  /// Throws Error(config) naming the site for two launchers at once and for values that a command line could
  /// misread.
  void check(const std::string& site) const;
  [[nodiscard]] Kind kind() const;
  /// Keys that differ from the defaults; all keys with `everything`.
  [[nodiscard]] std::vector<config::Item> items(bool everything) const;
};

[[nodiscard]] std::string_view to_string(LauncherConfig::Kind kind);

}  // namespace isthmus::app
