#pragma once
// What `launch` sends to a site, and by which addresses its parts find each other.

#include <filesystem>
#include <string>
#include <vector>

#include "launch/site_link.h"
#include "run/experiment.h"

namespace isthmus::app {

/// A config file with what was assigned over it.
struct LaunchConfig {
  std::filesystem::path file;
  std::vector<std::string> assignments;
};

/// The experiment as it is at a site on another machine, without sites: what the site sets by relative paths
/// starts from the folder of runs there, all other paths are as they are here. Its runs and certificates are
/// in that folder.
[[nodiscard]] Experiment experiment_there(const LaunchConfig& config, const Site& site,
                                          const std::filesystem::path& folder, const std::string& run);

/// Config and certificates of the site's workers, and of the coordinator if it is there: RUN/SITE.yaml and
/// RUN/certs/NAME/..., or, without certificates, RUN/run.secret, which holds `secret` (none if empty). Throws
/// Error(data) for a certificate that is not here.
[[nodiscard]] std::vector<SiteFile> files_of(const LaunchConfig& config, const Experiment& here,
                                             const Site& site, const SiteFacts& facts,
                                             const std::string& secret);

/// Where `files_of` has put the config.
[[nodiscard]] std::string config_there(const SiteFacts& facts, const std::string& run, const Site& site);
/// What stands in the place of worker `index` of a site, as the site's tether starts it: by `verb`, a command
/// and its flags but for the config, with the worker's name, ports and GPUs. Where it dials the coordinator
/// and where its logs are is left out. Throws Error(config) where the site has too few GPUs.
[[nodiscard]] SiteStart start_there(std::vector<std::string> verb, const LaunchConfig& config,
                                    const std::string& run, const Site& site, std::size_t index,
                                    const SiteFacts& facts);

/// Flags of worker `index` where it cannot have the ports that its site sets.
void add_ports(std::vector<std::string>& command, const outer_sync::NetworkConfig& network,
               std::size_t index);
/// Worker `index` of a site listens that many ports above what the site sets.
[[nodiscard]] std::string nth_address(const std::string& address, std::size_t index);

/// Where a coordinator must listen that others dial by `network.coordinator`: on any address with its port,
/// on loopback where that is one.
[[nodiscard]] std::string coordinator_listen(const std::string& coordinator);
/// What is dialled where `port` was chosen by the coordinator.
[[nodiscard]] std::string coordinator_address(const std::string& coordinator, std::uint16_t port);

/// By which workers of a site dial the coordinator, whose port that is; null stands for this machine. On its
/// own machine by loopback: it may not be reachable there by its outer address.
[[nodiscard]] std::string address_at(const Experiment& experiment, const Site* site, std::uint16_t port);

/// The site that has the coordinator; null where it is beside the launch.
[[nodiscard]] const Site* coordinator_site(const Experiment& experiment);
/// Throws Error(config) where sites on other machines could not reach the coordinator or each other.
void check_reach(const LaunchConfig& config, const Experiment& experiment);

}  // namespace isthmus::app
