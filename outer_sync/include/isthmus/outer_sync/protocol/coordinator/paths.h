#pragma once
// How fast the paths between members are. Each member says with its heartbeats what it sees of its paths to
// the others; the coordinator puts that together, and says when one path, or all that one member sends or
// gets, is far slower than the rest. Nothing here is agreed state.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync::protocol {

/// From one member to another, by name, as the one that sends sees it.
struct Path {
  std::string from, to;
  Time round_trip{}, shortest{};       ///< at present; without a queue
  std::uint64_t bytes_per_second = 0;  ///< that it has delivered lately when it was full; 0: not known
};

/// What may be slow: the path from one member to another; all that one sends, where `to` is empty; all that
/// one gets, where `from` is empty.
struct Route {
  std::string from, to;
  friend auto operator<=>(const Route&, const Route&) = default;
};

struct Slowness {
  Route route;
  double factor = 0;                   ///< so many times slower than the others
  std::uint64_t bytes_per_second = 0;  ///< of a line, its fastest path's
  std::string only;                    ///< of a line: the other end, where just one of its paths is known
};

/// So many times slower is slow, and less than that is not any more.
inline constexpr double slow_from = 3, slow_until = 2;
/// Paths of more members are not compared: the time that it takes grows with the third power.
inline constexpr std::size_t max_compared_members = 128;

/// Of those that were slow `before`, how they stand, where that can be told; of all others those that are
/// slow now. Only paths whose rate is known count, and one is compared with those whose shortest round trip
/// is at least a quarter of its own: what a site's own network delivers says nothing of the way to another
/// site. Of several such the median counts, and the lower one of two.
///
/// A line, all that a member sends or gets, is as slow as its fastest path is against the paths between
/// others; of two members, against the way back. What a slow line explains is not said of anything else. A
/// path is as slow as it is against its sender's other paths, or against the others' paths to its receiver,
/// whichever is less: both there must be, so of two members nothing is said of a path.
[[nodiscard]] std::vector<Slowness> compare_paths(const std::vector<Path>& paths,
                                                  const std::set<Route>& before);

/// The coordinator's part.
class RunPaths {
 public:
  /// What was said in older views is void; who was slow before and is still there is remembered.
  void begin(const View& view);
  /// What a member says of its paths, which is checked: all of it is passed over unless it fits the view.
  void add(ReplicaId from, const std::vector<PathReport>& reports);
  /// Lines for people since the last call: when something becomes slow, every `say_every` comparisons while
  /// it is, and when it is not any more.
  [[nodiscard]] std::vector<std::string> take_lines() { return std::exchange(lines_, {}); }
  /// All paths of the view that members have told of.
  [[nodiscard]] std::vector<Path> all() const;
  /// That are slow now.
  [[nodiscard]] std::vector<Route> slow() const;
  /// How often they have been compared: whenever somebody speaks again, so once in a heartbeat.
  [[nodiscard]] std::uint64_t comparisons() const { return comparisons_; }

  static constexpr std::uint64_t say_every = 100;

 private:
  [[nodiscard]] bool fits(ReplicaId from, const std::vector<PathReport>& reports) const;
  void compare();
  void record(const Slowness& seen);

  std::map<ReplicaId, std::string> names_;  ///< of the view's members
  std::map<ReplicaId, std::vector<PathReport>> reports_;
  std::set<ReplicaId> heard_;            ///< since the last comparison
  std::map<Route, std::uint64_t> slow_;  ///< for so many comparisons
  std::uint64_t comparisons_ = 0;
  std::vector<std::string> lines_;
};

}  // namespace isthmus::outer_sync::protocol
