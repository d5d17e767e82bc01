#pragma once
// From a run's own settings to what its replicas and lines would do: the schedule, the layout, the owners of
// chunks and the sizes of encoded chunks are those that the run itself would use.

#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/plan/simulate.h"

namespace isthmus::outer_sync::plan {

/// Elements per second and replica, beside training.
struct Speeds {
  double encode = 1e9, reduce = 1e9, apply = 1e9;
};

/// What is known beforehand.
struct Setting {
  Network network;
  Speeds speeds;
  /// Whether the coordinator knows the uplinks when it deals the chunks (network.rate at each site).
  bool uplinks_known = false;
};

struct Prediction {
  Timetable timetable;
  double utilization = 0;       ///< of the replica that computes least
  double steps_per_second = 0;  ///< agreed steps
  double bytes_per_step = 0;    ///< sent by the replica that sends most, headers included
  double mean_bytes_per_second = 0, peak_bytes_per_second = 0;  ///< likewise; the peak within one step's time
  double bits_per_parameter = 0;  ///< of one encoded outer gradient, or gradient
};

/// A model's fragments and chunks, and who owns them: as the coordinator of a run would deal them.
struct Cut {
  FragmentLayout layout;
  std::vector<protocol::MemberIndex> owners;
  std::string reason;  ///< a line for people
};
[[nodiscard]] Cut cut(const OuterConfig& outer, FragmentLayout layout, const Setting& setting);

/// `outer` must be resolved and know its replicas, as many as the network has; the cut is the one of its
/// num_fragments. Of a sync_every that changes with the step the last value counts. Throws Error(config) for
/// what is too large to be simulated.
[[nodiscard]] Prediction predict(const OuterConfig& outer, const Cut& cut, const Setting& setting);

/// The sync interval that predictions are of.
[[nodiscard]] std::uint64_t last_sync_every(const OuterConfig& outer);

}  // namespace isthmus::outer_sync::plan
