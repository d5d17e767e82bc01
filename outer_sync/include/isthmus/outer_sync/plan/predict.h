#pragma once
// Predicts from a run's settings what its replicas and links would do. It uses the run's own schedule,
// layout, chunk owners and sizes of encoded chunks.

#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/plan/simulate.h"

namespace isthmus::outer_sync::plan {

/// Elements per second that a replica processes while it trains.
struct Speeds {
  double encode = 1e9, reduce = 1e9, apply = 1e9;
};

/// Links and speeds, as known before the run.
struct Setting {
  Network network;
  Speeds speeds;
  /// Whether the coordinator knows the upload rates when it assigns the chunks (network.rate at each site).
  bool uplinks_known = false;
};

struct Prediction {
  Timetable timetable;
  double utilization = 0;       ///< of the replica with the lowest utilisation
  double steps_per_second = 0;  ///< agreed steps
  double bytes_per_step = 0;    ///< sent by the replica that sends most, headers included
  double mean_bytes_per_second = 0, peak_bytes_per_second = 0;  ///< likewise; peak over one step's time
  /// With outer.gossip_every, which counts as a constant load: exchanges of a fragment between two of its
  /// syncs, and seconds that the slowest pair needs to exchange every fragment once.
  std::uint64_t exchanges = 0;
  double exchange_seconds = 0;
  double exchange_bytes_per_second = 0;  ///< that each replica sends and receives in them, on average
  double bits_per_parameter = 0;         ///< of an encoded outer gradient (data_parallel: of a gradient)
};

/// A model's fragments and chunks, and their owners as the coordinator of a run would assign them.
struct Cut {
  FragmentLayout layout;
  std::vector<protocol::MemberIndex> owners;
  std::string reason;  ///< one human-readable line
};
[[nodiscard]] Cut cut(const OuterConfig& outer, FragmentLayout layout, const Setting& setting);

/// `outer` must be resolved and know its replicas, as many as the network has; `cut` must match its
/// num_fragments. If sync_every changes with the step, its last value is used. Throws Error(config) if the
/// run is too large to simulate.
[[nodiscard]] Prediction predict(const OuterConfig& outer, const Cut& cut, const Setting& setting);

/// The sync interval that predictions use.
[[nodiscard]] std::uint64_t last_sync_every(const OuterConfig& outer);

}  // namespace isthmus::outer_sync::plan
