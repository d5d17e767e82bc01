#pragma once
// When the newest rounds of each fragment were sent and committed, and when the next ones are due, as the
// coordinator sees it: from the schedule and the steps in the members' heartbeats, so accurate to a
// heartbeat. Uses no clock.

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
    double steps_per_second = 0;  ///< without waiting; 0: unknown
  };
  /// `seconds` must not fall from call to call.
  void look(double seconds, const outer_sync::Schedule& schedule, std::size_t fragments,
            const std::vector<Member>& members);
  /// The same for the run of this coordinator; `outer` is from its config. Does nothing while no view is in
  /// force.
  void look(double seconds, const outer_sync::protocol::Coordinator& coordinator,
            const outer_sync::OuterConfig& outer);
  /// All chunks of the round have been reduced. This may be called before it is known that the round was
  /// sent.
  void committed(double seconds, outer_sync::FragmentId fragment, std::uint64_t round);

  /// An array of objects, by fragment and then the oldest round first: fragment, round, sent_step,
  /// apply_step, sent_seconds_ago (since the last member sent), took_seconds (from then to the commit) and
  /// late_seconds (from when the first member needed the result to the commit; negative: before), null if
  /// unknown. At most `most` objects, equally many for each fragment.
  [[nodiscard]] nlohmann::ordered_json json(double seconds, std::size_t most) const;

  /// The next round of each fragment up to step `last`, the earliest first: an array of objects with
  /// fragment, round, sent_step, apply_step (its deadline), and sent_in_seconds and due_in_seconds, by the
  /// steps of the slowest member without waiting; null if its speed is unknown. At most `most` objects.
  [[nodiscard]] nlohmann::ordered_json timetable(const outer_sync::Schedule& schedule, std::size_t fragments,
                                                 std::uint64_t last, std::size_t most) const;
  /// The same for the run of this coordinator, as of the last look.
  [[nodiscard]] nlohmann::ordered_json timetable(std::uint64_t last, std::size_t most) const;

  static constexpr std::size_t kept = 4;  ///< rounds of each fragment

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
      early_;  ///< committed, but not known to be sent
  std::map<std::string, Seen> seen_;
  std::optional<Member> slowest_;  ///< at the last look
  std::size_t fragments_ = 0;
  std::optional<outer_sync::protocol::Settings> settings_;  ///< from which the schedule was made
  std::optional<outer_sync::Schedule> schedule_;
};

}  // namespace isthmus::app
