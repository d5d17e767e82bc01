#pragma once
// What a run would do with its lines, computed event by event: members make steps, send what the run's own
// Schedule says, and wait for what is due. No sockets, no clocks, no chance: the same figures every time.
//
// Rules, which are those of the transport:
// - A member's line outwards carries one thing at a time; what belongs to the round that began first goes
//   first, and of one round what was ready first.
// - An owner reduces a piece when all contributions to it are there, and sends the result to all others.
// - A path may be slower than the lines at its ends (lanes with a bounded window), a line inwards too; what
//   passes them flows on while it comes in.
// - After each step a replica sends first, then waits for results that are due, as OuterLoop does.

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

/// Lines and paths. Replicas of one place are alike to all others, and see each other over its own path: what
/// is on its way to them is there at one time. For what each sees exactly give each a place of its own.
struct Network {
  std::vector<Replica> replicas;
  std::vector<std::uint32_t> place;  ///< of each replica, below S
  std::vector<double> one_way;       ///< seconds from place i to place j at [i S + j]
  std::vector<double> path;          ///< bytes per second between a replica and one there; empty for no limit
};

/// A part of a fragment that leaves and is reduced as one.
struct Piece {
  struct Share {
    std::uint32_t owner;
    double bytes;  ///< encoded, of the piece's chunks that this member owns
  };
  std::vector<Share> shares;  ///< of each owner once
  double in_step = 1;         ///< when it may leave: this part of the step's compute is over,
  double seconds_after = 0;   ///< and so many seconds after that (encoding, where in_step is 1)
  double reduce_seconds = 0;  ///< from the last contribution to the result
};

struct Fragment {
  std::vector<Piece> pieces;  ///< in the order in which they leave
  /// On a replica's training thread.
  double encode_seconds = 0, apply_seconds = 0;
};

struct Simulated {
  Network network;
  std::vector<Fragment> fragments;
  Schedule schedule;
  /// Utilisation is of the steps after the first `filling` up to the last one.
  std::uint64_t filling = 0, steps = 0;
};

/// One round of a fragment; seconds since its replica began the first step, or durations.
struct RoundTimes {
  FragmentId fragment = 0;
  std::uint64_t send_step = 0, apply_step = 0;
  double seconds = 0;  ///< from the first contribution to the last replica's having the result
  double slack = 0;    ///< least of all replicas: due minus there; below 0 the replica waits for so long
};

struct ReplicaTimes {
  double seconds = 0;             ///< of the measured steps
  double utilization = 0;         ///< computing, of that time
  double waiting = 0;             ///< seconds waited for results
  double sent = 0, received = 0;  ///< bytes in the measured steps
  double peak = 0;                ///< most bytes sent within one step's time, per second
};

struct Timetable {
  std::vector<ReplicaTimes> replicas;
  std::vector<RoundTimes> rounds;  ///< of those sent in the measured steps whose results are due in them
  [[nodiscard]] double utilization() const;  ///< of the replica that computes least
};

/// Requires steps > filling, at least one replica, and tables as large as `Network` says. Takes time and
/// memory in proportion to rounds x pieces x replicas x places.
[[nodiscard]] Timetable simulate(const Simulated& run);

}  // namespace isthmus::outer_sync::plan
