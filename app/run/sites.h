#pragma once
// `sites` of a config: replicas that stand in one place, and what is set there otherwise than elsewhere.
//
//   sites:
//     eu: {replicas: 2, inner.batch: 48}         # workers eu-1 and eu-2
//     us: {inner.batch: 8, data.path: /data/us}  # worker us

#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/base/config.h"
#include "run/launcher_config.h"

namespace isthmus::app {

struct Site {
  std::string name;
  std::int64_t replicas = 1;
  std::vector<config::Source::Entry> settings;  ///< by their general keys
  LauncherConfig launch;
  /// The site's own keys, beside settings.
  void serialize(config::Archive& ar);

  /// NAME where there is one, else NAME-1, NAME-2, ...
  [[nodiscard]] std::vector<std::string> workers() const;
  /// Its paths are another machine's.
  [[nodiscard]] bool is_elsewhere() const { return launch.kind() != LauncherConfig::Kind::local; }
};

/// Takes the section `sites` out of a source; in the order in which sites are named. What was assigned in
/// general (--set KEY=VALUE) is taken off their settings, unless it was assigned to the site itself. `keys`
/// are all general ones. Throws Error(config) naming the place for a name that no worker could have, two
/// workers of one name, and a key that sites may not set apart: only those of class per_site may stand there.
[[nodiscard]] std::vector<Site> take_sites(config::Source& source, const std::vector<config::Item>& keys);

/// The site of a worker: by name if `site` is given, else the one that has it among its workers, or whose
/// name it begins with (so that one more may join: eu-3). Null if there are no sites. Throws Error(config).
[[nodiscard]] const Site* site_of(const std::vector<Site>& sites, const std::string& worker,
                                  const std::string& site);

/// The keys of a site that are no settings; of its launcher those that were set, or `everything`.
[[nodiscard]] std::vector<config::Item> own_items(Site& site, bool everything);

/// The same config as it is at that site.
[[nodiscard]] config::Source at_site(config::Source source, const Site& site);

}  // namespace isthmus::app
