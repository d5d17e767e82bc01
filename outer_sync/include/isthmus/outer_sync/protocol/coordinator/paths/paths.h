#pragma once
// Finds slow paths between members. Every heartbeat reports its sender's paths to the others; the coordinator
// compares them, and reports a path, or all sending or receiving of one member, that is far slower than the
// rest. Nothing here is agreed state.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/paths.h"
#include "isthmus/outer_sync/protocol/topology.h"

namespace isthmus::outer_sync::protocol {

/// From one member to another, by name, as measured by the sender.
struct Path {
  std::string from, to;
  Time round_trip{}, shortest{};       ///< at present; the shortest, without a queue
  std::uint64_t bytes_per_second = 0;  ///< recently delivered while it was full; 0: not known
  std::uint64_t at_least = 0;          ///< most delivered in a short time lately: a lower bound of the rate

  /// Its rate, or the lower bound of it.
  [[nodiscard]] std::uint64_t bound() const { return bytes_per_second > 0 ? bytes_per_second : at_least; }
};

/// A route that may be slow: one path, all that `from` sends (`to` is empty), or all that `to` receives
/// (`from` is empty).
struct Route {
  std::string from, to;
  friend auto operator<=>(const Route&, const Route&) = default;
};

struct Slowness {
  Route route;
  double factor = 0;                   ///< times slower than the others
  std::uint64_t bytes_per_second = 0;  ///< of a link: that of its fastest path
  std::string only;  ///< of a link: the other end, if only one of its paths has a known rate
};

/// A route is slow from `slow_from` times slower on, until it is below `slow_until`.
inline constexpr double slow_from = 3, slow_until = 2;
/// Larger views are not compared: the time grows with the third power of the members.
inline constexpr std::size_t max_compared_members = 128;

/// Returns all routes that are slow now, and the current state of those in `before`, if known. Only paths
/// with a known rate are judged; those with a lower bound are compared with, because most paths are never
/// full. A path is compared only with paths with a shortest round trip of at least a quarter of its own: a
/// site's internal network says nothing about the way to another site. The reference rate is their median (of
/// an even number, the lower one).
///
/// A member's link in one direction is as slow as its fastest path is against the paths between other
/// members; with two members, against the opposite direction. Paths that a slow link explains are not judged.
/// A path is compared with its sender's other paths and with the other paths to its receiver, and the smaller
/// factor counts. Two members have no such paths, so no single path is judged.
[[nodiscard]] std::vector<Slowness> compare_paths(const std::vector<Path>& paths,
                                                  const std::set<Route>& before);

/// Collects the reports of one view's members; owned by the coordinator.
class RunPaths {
 public:
  /// Drops the reports of older views. Remembers slow routes between members that are still present.
  void begin(const View& view);
  /// Takes a member's report on its paths. A report that does not fit the view is ignored as a whole.
  void add(ReplicaId from, const std::vector<PathReport>& reports);
  /// Log lines since the last call: when a route becomes slow, every `say_every` comparisons while it is
  /// slow, and when it has recovered.
  [[nodiscard]] std::vector<std::string> take_lines() { return std::exchange(lines_, {}); }
  /// All reported paths of the view.
  [[nodiscard]] std::vector<Path> all() const;
  /// Routes that are slow now.
  [[nodiscard]] std::vector<Route> slow() const;
  /// Limits of the members' links and paths for the deal of the chunks. Routes count from `counted_from`
  /// comparisons on for which they were slow.
  struct Limits {
    std::map<std::string, std::uint64_t> uplinks;    ///< lower bounds, by member: its fastest path
    std::map<std::string, std::uint64_t> downlinks;  ///< of members to which all paths are slow
    std::vector<SlowPath> slow;
  };
  [[nodiscard]] Limits limits() const;
  /// Number of comparisons. One takes place when a member reports for the second time, so once per heartbeat.
  [[nodiscard]] std::uint64_t comparisons() const { return comparisons_; }

  static constexpr std::uint64_t say_every = 100, counted_from = 20;
  /// Comparisons without a known rate after which a slow route is tried again: after a new deal it may carry
  /// nothing.
  static constexpr std::uint64_t forgotten_after = 6 * 3600;

 private:
  [[nodiscard]] bool fits(ReplicaId from, const std::vector<PathReport>& reports) const;
  void compare();
  void record(const Slowness& seen);

  std::map<ReplicaId, std::string> names_;  ///< of the view's members
  std::map<ReplicaId, std::vector<PathReport>> reports_;
  std::set<ReplicaId> heard_;  ///< reported since the last comparison
  struct Slow {
    std::uint64_t comparisons = 0;  ///< for which it has been slow
    std::uint64_t unknown_for = 0;  ///< comparisons since its rate was known
    std::uint64_t bytes_per_second = 0;
  };
  std::map<Route, Slow> slow_;
  std::uint64_t comparisons_ = 0;
  std::vector<std::string> lines_;
};

}  // namespace isthmus::outer_sync::protocol
