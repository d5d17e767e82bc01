#pragma once
// Simulates a run event by event: members make steps, send what the run's own Schedule prescribes, and wait
// for due results. No sockets, no clocks, no randomness: the figures are the same every time.
//
// Rules, which are those of the transport:
// - A member's upload link carries one item at a time: the oldest round first, and within it the
//   piece that was ready first.
// - An owner reduces a piece when it has all contributions, and sends the result to all other members.
// - A path (lanes with a bounded window) or a download link may be slower than the upload link; both pass
//   data on while it arrives.
// - After each step a replica sends first, then waits for due results, as OuterLoop does.

#include <cstdint>
#include <limits>
#include <vector>

#include "isthmus/outer_sync/core/schedule.h"

namespace isthmus::outer_sync::plan {

inline constexpr double unlimited = std::numeric_limits<double>::infinity();

/// A training replica; rates in bytes of chunks per second.
struct Replica {
  double step_seconds = 1;
  double up = unlimited, down = unlimited;
};

/// Links and paths. All others see the replicas of one place as identical: data for a place reaches all of
/// them at one time. They reach each other over the place's path to itself. To simulate each replica exactly,
/// give each its own place.
struct Network {
  std::vector<Replica> replicas;
  std::vector<std::uint32_t> place;  ///< of each replica; less than S, the number of places
  std::vector<double> one_way;       ///< seconds from place i to place j at [i S + j]
  std::vector<double> path;          ///< bytes per second, indexed like `one_way`; empty: no limit
};

/// A part of a fragment that is sent and reduced as a unit.
struct Piece {
  struct Share {
    std::uint32_t owner;
    double bytes;  ///< encoded, of the piece's chunks that this member owns
  };
  std::vector<Share> shares;  ///< one per owner, in ascending order of owners
  double in_step = 1;         ///< ready to send when this share of the step's compute is done,
  double seconds_after = 0;   ///< and this many seconds after that (encoding, if in_step is 1)
  double reduce_seconds = 0;  ///< from the last contribution to the result
};

struct Fragment {
  std::vector<Piece> pieces;  ///< in send order
  /// Time on a replica's training thread.
  double encode_seconds = 0, apply_seconds = 0;
};

struct Simulated {
  Network network;
  std::vector<Fragment> fragments;
  Schedule schedule;
  /// Utilisation is measured over the steps after the first `filling` ones, up to the last.
  std::uint64_t filling = 0, steps = 0;
};

/// One round of a fragment; durations in seconds.
struct RoundTimes {
  FragmentId fragment = 0;
  std::uint64_t send_step = 0, apply_step = 0;
  double seconds = 0;  ///< from the first contribution until the last replica has the result
  double slack = 0;    ///< minimum over replicas of due minus arrival; negative: one waits that long
};

struct ReplicaTimes {
  double seconds = 0;             ///< of the measured steps
  double utilization = 0;         ///< share of that time spent computing
  double waiting = 0;             ///< seconds waited for results
  double sent = 0, received = 0;  ///< bytes in the measured steps
  double peak = 0;                ///< maximum rate over one step's time, in bytes per second
};

struct Timetable {
  std::vector<ReplicaTimes> replicas;
  std::vector<RoundTimes> rounds;            ///< rounds sent and due in the measured steps
  [[nodiscard]] double utilization() const;  ///< of the replica with the lowest utilisation
};

/// Requires steps > filling, at least one replica, and tables of the sizes that `Network` defines. Time and
/// memory are proportional to rounds x pieces x replicas x places.
[[nodiscard]] Timetable simulate(const Simulated& run);

}  // namespace isthmus::outer_sync::plan
