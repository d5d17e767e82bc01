#pragma once
// What `isthmus plan` knows of lines and machines: from a links file, from what an earlier run has measured,
// or from the config (network.emulate, network.rate).
//
//   sites:
//     eu: {replicas: 2, up: 1Gbps, down: 1Gbps, step_time: 500ms}   # of each replica
//     us: {up: 200Mbps, step_time: 650ms}
//   rtt:
//     eu: {us: 90ms}        # both ways, unless us: {eu: ...} says otherwise
//   other_rtt: 100ms        # of pairs that are not named
//   local_rtt: 1ms          # between replicas of one site

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "isthmus/outer_sync/plan/simulate.h"
#include "run/experiment.h"

namespace isthmus::app {

struct LinkSite {
  std::string name;
  std::int64_t replicas = 1;
  config::Rate up, down;       ///< of each replica's line; auto: no limit
  config::Duration step_time;  ///< 0: the general one
  void serialize(config::Archive& ar);
};

/// Links of all replicas, by site.
struct Links {
  std::vector<LinkSite> sites;
  std::vector<double> rtt;     ///< seconds, from site i to site j at [i S + j]; by the diagonal within a site
  bool packets = true;         ///< rates are those of a line, whose packets have headers
  bool uplinks_known = false;  ///< the coordinator knows them too
  std::string source;          ///< for people

  [[nodiscard]] std::int64_t replicas() const;
};

/// A links file; what `isthmus doctor --json` has said of all machines, where the name ends in .json; or the
/// folder of a run: its `metrics.jsonl` has what members have measured of their paths, its `summary.json` the
/// time of a step. Throws Error(config) naming place, value and what was expected; Error(data) where the
/// folder or the document has no such figures.
[[nodiscard]] Links read_links(const std::filesystem::path& path);
/// Of network.emulate and network.rate, at each site.
[[nodiscard]] Links links_of(const Experiment& experiment);

/// As the simulation takes them. `lanes` connections to each peer, which have a bounded window;
/// `step_seconds` where a site has no step_time of its own.
[[nodiscard]] outer_sync::plan::Network network_of(const Links& links, std::int64_t lanes,
                                                   double step_seconds);

}  // namespace isthmus::app
