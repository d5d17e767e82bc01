#pragma once
// When the newest rounds of each fragment were sent and committed, as the coordinator sees it: from the steps
// that members say with their heartbeats, so to within a heartbeat, and from the schedule. No clock.

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/core/schedule.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"

namespace isthmus::app {

class RoundTimeline {
 public:
  /// A trainer of the view.
  struct Member {
    std::string name;
    std::uint64_t step = 0;       ///< agreed
    double steps_per_second = 0;  ///< without what it waited for; 0: not known
  };
  /// `seconds` never fall.
  void look(double seconds, const outer_sync::Schedule& schedule, std::size_t fragments,
            const std::vector<Member>& members);
  /// The same for the run that this one coordinates, `outer` of its config; nothing while no view is in
  /// force.
  void look(double seconds, const outer_sync::protocol::Coordinator& coordinator,
            const outer_sync::OuterConfig& outer);
  /// All of its chunks are reduced; it may not be known yet that it was sent.
  void committed(double seconds, outer_sync::FragmentId fragment, std::uint64_t round);

  /// An array of objects, by fragment and the oldest first: fragment, round, sent_step, apply_step,
  /// sent_seconds_ago (since the last member has sent), took_seconds (from then to its being committed) and
  /// late_seconds (committed after the first member would have applied it; less than 0: before), null where
  /// that is not known. At most `most` of them, and as many of each fragment.
  [[nodiscard]] nlohmann::ordered_json json(double seconds, std::size_t most) const;

  static constexpr std::size_t kept = 4;  ///< of each fragment

 private:
  struct Round {
    std::uint64_t round = 0, sent_step = 0, apply_step = 0;
    double sent = 0;               ///< by the last member so far
    std::optional<double> needed;  ///< by the first member
    std::optional<double> committed;
  };
  struct Seen {
    double seconds = 0;
    std::uint64_t step = 0;
  };
  [[nodiscard]] Round* find(outer_sync::FragmentId fragment, std::uint64_t round);
  void advance(const Seen& from, const Seen& to, const Member& member, const outer_sync::Schedule& schedule,
               std::size_t fragments);

  std::map<outer_sync::FragmentId, std::deque<Round>> rounds_;
  std::map<std::pair<outer_sync::FragmentId, std::uint64_t>, double>
      early_;  ///< committed, and not known yet
  std::map<std::string, Seen> seen_;
  std::optional<outer_sync::protocol::Settings> settings_;  ///< that the schedule is of
  std::optional<outer_sync::Schedule> schedule_;
};

}  // namespace isthmus::app
