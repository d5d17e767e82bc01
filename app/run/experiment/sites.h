#pragma once
// `sites` of a config: places with replicas, and the settings that differ there.
//
//   sites:
//     eu: {replicas: 2, inner.batch: 48}         # workers eu-1 and eu-2
//     us: {inner.batch: 8, data.path: /data/us}  # worker us

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "isthmus/base/config.h"
#include "run/experiment/launcher_config.h"

namespace isthmus::app {

struct Site {
  std::string name;
  std::int64_t replicas = 1;
  std::vector<config::Source::Entry> settings;  ///< by general key
  LauncherConfig launch;
  config::Duration silence{};  ///< launch.silence there; `load_experiment` sets it
  bool has_command = false;    ///< a worker.command trains there; `load_experiment` sets it
  /// The site's own keys, without settings.
  void serialize(config::Archive& ar);

  /// NAME for one worker, otherwise NAME-1, NAME-2, ...
  [[nodiscard]] std::vector<std::string> workers() const;
  /// Its setting for a general key; null if it has none.
  [[nodiscard]] const config::Source::Entry* find(std::string_view key) const;
  /// Whether its workers, and so its paths, are on another machine.
  [[nodiscard]] bool is_elsewhere() const { return launch.kind() != LauncherConfig::Kind::local; }
};

/// Throws Error(config) naming `place` unless the name is valid for a site. It is part of folder names and of
/// keys, so it must not contain a dot.
void check_site_name(const std::string& place, const std::string& name);

/// Removes the section `sites` from a source and returns the sites in their order. General assignments (--set
/// KEY=VALUE) override their settings, except those assigned to the site itself. `keys`: all general keys.
/// Throws Error(config) naming the place for a name that no worker could have, two workers of one name, and a
/// key that is not of class per_site.
[[nodiscard]] std::vector<Site> take_sites(config::Source& source, const std::vector<config::Item>& keys);

/// The site of a worker: `site` if given; otherwise the site that has this worker, or with a name that the
/// worker's name begins with (so that one more may join: eu-3). Null without sites. Throws Error(config).
[[nodiscard]] const Site* site_of(const std::vector<Site>& sites, const std::string& worker,
                                  const std::string& site);

/// The keys of a site that are not settings. Launcher keys only if they were set, or all with `everything`.
[[nodiscard]] std::vector<config::Item> own_items(Site& site, bool everything);

/// The config with the site's settings.
[[nodiscard]] config::Source at_site(config::Source source, const Site& site);

}  // namespace isthmus::app
