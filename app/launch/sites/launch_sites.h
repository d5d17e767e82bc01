#pragma once
// Files and commands that `launch` sends to a site, and the addresses by which processes find each other.

#include <filesystem>
#include <string>
#include <vector>

#include "launch/sites/site_link.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

/// A config file and the assignments on top of it.
struct LaunchConfig {
  std::filesystem::path file;
  std::vector<std::string> assignments;
};

/// The experiment for a site on another machine, without its sites. Relative paths that the site sets start
/// from the folder of runs there; other paths stay as they are here. Runs and certificates are in that
/// folder.
[[nodiscard]] Experiment experiment_there(const LaunchConfig& config, const Site& site,
                                          const std::filesystem::path& folder, const std::string& run);

/// Config and certificates for the site's workers, and for the coordinator if it runs there: RUN/SITE.yaml
/// and RUN/certs/NAME/... or, without certificates, `secret` as RUN/run.secret (no file if empty). Throws
/// Error(data) if a certificate is missing here.
[[nodiscard]] std::vector<SiteFile> files_of(const LaunchConfig& config, const Experiment& here,
                                             const Site& site, const SiteFacts& facts,
                                             const std::string& secret);

/// Path at the site of the config that `files_of` writes.
[[nodiscard]] std::string config_there(const SiteFacts& facts, const std::string& run, const Site& site);
/// The process that takes the place of worker `index` at a site, for the site's agent to start. `verb`: a
/// command with its flags, except the config; name, ports and GPUs are added here, the coordinator's address
/// and the log by the caller. Throws Error(config) if the site has too few GPUs.
[[nodiscard]] SiteStart start_there(std::vector<std::string> verb, const LaunchConfig& config,
                                    const std::string& run, const Site& site, std::size_t index,
                                    const SiteFacts& facts);

/// Adds port flags for worker `index`, unless it uses the ports of its site's config.
void add_ports(std::vector<std::string>& command, const outer_sync::NetworkConfig& network,
               std::size_t index);
/// The address with its port raised by `index`, for worker `index` of a site.
[[nodiscard]] std::string nth_address(const std::string& address, std::size_t index);

/// Where the coordinator must listen if others dial `network.coordinator`: at that port of any address; a
/// loopback address stays.
[[nodiscard]] std::string coordinator_listen(const std::string& coordinator);
/// The address to dial: `coordinator`, with `port` if its port is 0.
[[nodiscard]] std::string coordinator_address(const std::string& coordinator, std::uint16_t port);

/// Address at which workers of a site (null: this machine) dial the coordinator at `port`. On the
/// coordinator's own machine it is a loopback address: the outer one may not be reachable there.
[[nodiscard]] std::string address_at(const Experiment& experiment, const Site* site, std::uint16_t port);

/// The site that runs the coordinator; null if it runs next to the launch.
[[nodiscard]] const Site* coordinator_site(const Experiment& experiment);
/// Throws Error(config) if sites on other machines could not reach the coordinator or each other.
void check_reach(const LaunchConfig& config, const Experiment& experiment);

}  // namespace isthmus::app
