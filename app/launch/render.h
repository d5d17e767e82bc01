#pragma once
// `isthmus launch --render`: what a scheduler needs to run the sites of an experiment.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "launch/launch_sites.h"

namespace isthmus::app {

struct RenderRequest {
  LaunchConfig config;
  std::string kind;          ///< "slurm" or "kubernetes"
  std::filesystem::path to;  ///< empty: NAME-KIND, of the run
  bool json = false;         ///< the files and what is to be done with them as one JSON document
};

/// Writes the files and says what to do with them. Sites that have a launcher of that kind; all, where none
/// has one of any. Exit status 0. Throws Error(config) or Error(data).
[[nodiscard]] int run_render(const RenderRequest& request);

/// The port of a site that names none.
inline constexpr std::uint16_t usual_port = 7001;
/// The time that a scheduler leaves a worker between SIGTERM and the end: to write a checkpoint with the
/// others and to go out between two steps.
inline constexpr int farewell_seconds = 120;

/// A site as it is rendered.
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
/// The shell that starts the coordinator beside them, for a login node; again where all workers have left.
[[nodiscard]] std::string slurm_coordinator(const Experiment& experiment);
/// SITE.manifests.yaml: a ConfigMap, and a Job for each worker with the Service by which others reach it; the
/// coordinator too, where it is there.
[[nodiscard]] std::vector<RenderedFile> kubernetes_files(const RenderedSite& site, bool with_coordinator);
/// The commands that make the Secrets to which the manifests refer, from certificates in `certs`.
[[nodiscard]] std::vector<std::string> secret_commands(const RenderedSite& site, const std::string& certs,
                                                       bool with_coordinator);

}  // namespace isthmus::app
