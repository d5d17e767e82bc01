#pragma once
// The config that `isthmus init` writes: a recipe with the sites, data and addresses of a new run. No files;
// all texts come from the user, and are checked here.

#include <string>
#include <string_view>
#include <vector>

#include "cli/files/recipes.h"

namespace isthmus::app {

struct NewSite {
  std::string name;
  std::string ssh;       ///< USER@HOST; empty: the machine of `launch`, or `by_hand`
  std::string host;      ///< host in `ssh`, IPv6 in brackets
  int port = 0;          ///< at which its worker listens; 0: 7001, or the next free one if sites share a host
  bool by_hand = false;  ///< on another machine; its user starts the worker, which opens no port
  [[nodiscard]] bool is_elsewhere() const { return by_hand || !ssh.empty(); }
};

/// Target of a site that is started by hand, instead of USER@HOST.
inline constexpr std::string_view by_hand_target = "by-hand";

/// Name of the observer's certificate; no site may have it.
inline constexpr std::string_view watcher_name = "watch";
/// The coordinator's address if all sites are on this machine.
inline constexpr std::string_view local_coordinator = "127.0.0.1:7000";

struct NewRun {
  Recipe recipe;
  std::string name;
  std::vector<NewSite> sites;
  std::string data;
  std::string coordinator;  ///< HOST:PORT
  std::string certs;        ///< network.certs; empty: none
};

/// "eu=me@eu.example:7101,us=by-hand"; a name alone is a site on the machine of `launch`. Throws
/// Error(config) naming --sites for a name, an ssh target or a port that cannot work, and for a name or an
/// address given twice.
[[nodiscard]] std::vector<NewSite> parse_new_sites(std::string_view text);
[[nodiscard]] bool any_elsewhere(const std::vector<NewSite>& sites);
/// Whether no site opens a port, so that a reducer next to `launch` has to.
[[nodiscard]] bool needs_reducer(const std::vector<NewSite>& sites);
/// The address, if all of these sites can dial it and no worker of theirs has it. Throws Error(config) naming
/// --coordinator.
[[nodiscard]] std::string check_new_coordinator(const std::string& text, const std::vector<NewSite>& sites);
/// The text, if it can be data.path. Throws Error(config) naming --data.
[[nodiscard]] std::string check_new_data(const std::string& text);
/// Whether other machines can reach the run, which then needs certificates.
[[nodiscard]] bool is_reachable(const NewRun& run);

/// data.path of a recipe.
[[nodiscard]] std::string data_of(const Recipe& recipe);
/// The commented config in YAML. It was loaded once, and every value reads back as given. The sites share the
/// recipe's total batch. Throws Error(config).
[[nodiscard]] std::string new_config(const NewRun& run);

}  // namespace isthmus::app
