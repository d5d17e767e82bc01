#pragma once
// Links and machines for `isthmus plan`: from a links file, from measurements of an earlier run or of
// `isthmus doctor`, or from the config (network.emulate, network.rate).
//
//   sites:
//     eu: {replicas: 2, up: 1Gbps, down: 1Gbps, step_time: 500ms}   # for each replica
//     us: {up: 200Mbps, step_time: 650ms}
//   rtt:
//     eu: {us: 90ms}        # both ways, unless us: {eu: ...} is given
//   other_rtt: 100ms        # all other pairs
//   local_rtt: 1ms          # between replicas of one site

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "isthmus/outer_sync/plan/simulate.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

struct LinkSite {
  std::string name;
  std::int64_t replicas = 1;
  config::Rate up, down;       ///< of each replica's link; auto: no limit
  config::Duration step_time;  ///< 0: use the general step time
  void serialize(config::Archive& ar);
};

/// The links of all replicas, by site.
struct Links {
  std::vector<LinkSite> sites;
  std::vector<double> rtt;     ///< seconds, from site i to site j at [i S + j]; on the diagonal within a site
  bool packets = true;         ///< rates are link rates, which include packet headers
  bool uplinks_known = false;  ///< the coordinator knows the uplink rates too
  std::string source;          ///< human-readable

  [[nodiscard]] std::int64_t replicas() const;
  /// Whether any rate or round trip is known. Otherwise messages take no time in a plan.
  [[nodiscard]] bool are_known() const;
};

/// Reads a links file; the output of `isthmus doctor --json` if the name ends in .json; or a run's folder,
/// where `metrics.jsonl` has path measurements and `summary.json` step times. Throws Error(config) naming
/// place, value and what was expected; Error(data) if the folder or document has no such figures.
[[nodiscard]] Links read_links(const std::filesystem::path& path);
/// Links from network.emulate and network.rate at each site.
[[nodiscard]] Links links_of(const Experiment& experiment);

/// Converts links for the simulation. `lanes`: connections to each peer, each with a bounded window.
/// `step_seconds`: for sites without a step_time.
[[nodiscard]] outer_sync::plan::Network network_of(const Links& links, std::int64_t lanes,
                                                   double step_seconds);

}  // namespace isthmus::app
