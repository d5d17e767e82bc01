#pragma once
// Heartbeats, with all that a member reports regularly, and the coordinator's replies, which grant leases.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/paths.h"
#include "isthmus/outer_sync/protocol/messages/state.h"

namespace isthmus::outer_sync::protocol {

/// One contributor's share of a round, over the chunks of one owner that include it (health.h).
struct ContributorHealth {
  ReplicaId replica = 0;
  std::uint32_t chunks = 0;
  double squares = 0;  ///< of its contributions; infinite if one does not decode
  double dot = 0;      ///< with the mean
  template <class Archive>
  void serialize(Archive& ar) {
    ar(replica, chunks, squares, dot);
  }
};
struct RoundHealth {
  FragmentId fragment = 0;
  Round round = 0;
  std::uint32_t chunks = 0;  ///< of the fragment, all that the sender owns
  double mean_squares = 0;
  std::vector<ContributorHealth> contributors;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, round, chunks, mean_squares, contributors);
  }
};

/// Largest magnitude of a gain (step_figures.h). A small gradient after large ones would make it arbitrarily
/// large.
inline constexpr double max_abs_gain = 1e6;

/// member -> coordinator: every `network.heartbeat` from the hello on, so that silence is noticed while
/// members join and load, too. Large because all that changes in training travels in this one message.
struct Heartbeat {
  std::uint64_t number = 0;            ///< returned in the reply
  ViewNumber view = 0;                 ///< highest view that has begun here
  std::uint64_t step = 0;              ///< agreed step
  std::uint16_t contributed = 0;       ///< trainers in the round applied last
  std::vector<ReplicaId> unreachable;  ///< members of the view that it cannot reach, not even through a relay
  double loss = 0;                     ///< nats per token, last step
  double tokens_per_second = 0;        ///< since the last heartbeat
  double utilization = 0;              ///< 0 to 1, since the start
  std::uint64_t bytes_sent = 0;        ///< since the start, headers and control included
  std::uint64_t uplink = 0;            ///< bytes per second: from the hello, or measured since; 0: not known
  double inner_steps_per_second = 0;   ///< without waits; 0: not known yet
  /// Last applied round and first 8 bytes of its chain hash; empty before Sealed.
  std::vector<std::pair<Round, std::uint64_t>> fragments;
  std::vector<RoundHealth> health{};        ///< at most one round of each fragment
  std::vector<PathReport> paths{};          ///< to the connected members of the view, each once
  std::uint64_t relays = 0;                 ///< Relays::number of the list in force here
  std::vector<ReplicaId> relayed{};         ///< members that it reaches only through a relay
  std::vector<CheckpointId> checkpoints{};  ///< the newest complete ones here
  std::uint64_t disk_free = 0;              ///< bytes, in its run folder; 0: not known
  std::vector<StateDigest> digests{};       ///< since the last heartbeat
  /// Newest outer steps (step_figures.h), mean over the fragments; a gain of 0: not known.
  double outer_gain = 0, outer_correlation = 0;
  std::uint64_t late_results = 0;  ///< since the start: not here when their step came
  template <class Archive>
  void serialize(Archive& ar) {
    ar(number, view, step, contributed, unreachable, loss, tokens_per_second, utilization, bytes_sent, uplink,
       inner_steps_per_second, fragments, health, paths, relays, relayed, checkpoints, disk_free, digests,
       outer_gain, outer_correlation, late_results);
  }
};

/// coordinator -> member: heartbeat received. If `view` is the member's view, this grants a lease, counted
/// from when the heartbeat was sent: until it ends, no other view begins without this member. The coordinator
/// sets its length, because the coordinator waits for its end.
struct HeartbeatReply {
  ViewNumber view = 0;  ///< 0: no view is in force
  std::uint64_t number = 0;
  std::vector<Round> lowest;          ///< by fragment: applied by all members of the view
  std::vector<Round> newest;          ///< by fragment: applied by any of them
  std::uint64_t lease = 0;            ///< microseconds; 0: no lease
  double inner_steps_per_second = 0;  ///< the median of the view's members; 0: not known
  std::uint64_t checkpoint = 0;       ///< newest step checkpointed by all its trainers; 0: none
  template <class Archive>
  void serialize(Archive& ar) {
    ar(view, number, lowest, newest, lease, inner_steps_per_second, checkpoint);
  }
};

}  // namespace isthmus::outer_sync::protocol
