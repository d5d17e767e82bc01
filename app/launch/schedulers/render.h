#pragma once
// `isthmus launch --render`: writes the files that a scheduler needs to run the sites of an experiment.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "launch/sites/launch_sites.h"

namespace isthmus::app {

struct RenderRequest {
  LaunchConfig config;
  std::string kind;          ///< "slurm" or "kubernetes"
  std::filesystem::path to;  ///< empty: RUN-KIND
  bool json = false;         ///< print the files and the next steps as one JSON document
};

/// Writes the files for all sites with a launcher of that kind (all sites if none has a launcher) and prints
/// the next steps. Exit status 0. Throws Error(config) or Error(data).
[[nodiscard]] int run_render(const RenderRequest& request);

/// Port of a site that sets none.
inline constexpr std::uint16_t usual_port = 7001;
/// Seconds from SIGTERM to the end that a scheduler gives a worker: enough to write a checkpoint with the
/// others and to leave between two steps.
inline constexpr int grace_seconds = 120;

/// A site to render.
struct RenderedSite {
  Site site;
  Experiment there;
  std::string coordinator;  ///< HOST:PORT that its workers dial
};
struct RenderedFile {
  std::string name, text;
};

/// SITE.sbatch and SITE.yaml.
[[nodiscard]] std::vector<RenderedFile> slurm_files(const RenderedSite& site);
/// Shell command that starts the coordinator on a login node, and restarts it after all workers have left.
[[nodiscard]] std::string slurm_coordinator(const Experiment& experiment);
/// SITE.manifests.yaml: a ConfigMap, and for each worker a Job and the Service by which others reach it; the
/// coordinator too if it runs there.
[[nodiscard]] std::vector<RenderedFile> kubernetes_files(const RenderedSite& site, bool with_coordinator);
/// Commands that create the Secrets of the manifests from the certificates in `certs`.
[[nodiscard]] std::vector<std::string> secret_commands(const RenderedSite& site, const std::string& certs,
                                                       bool with_coordinator);

}  // namespace isthmus::app
