#pragma once
// Plans again while a run goes on: from what its members measure of their lines, whether other values of
// sync_every and sync_delay are needed for the wanted utilisation. No clock, no sockets: readings go in, at
// most a proposal comes out.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/outer_sync/plan/predict.h"

namespace isthmus::outer_sync::plan {

/// What is known of a run's lines at one moment; 0 stands for what is not known.
struct LineReadings {
  struct Member {
    std::string name;
    double step_seconds = 0;  ///< of an inner step, without what it waited for
    double up = 0;            ///< bytes per second that it can send to all others together
    friend bool operator==(const Member&, const Member&) = default;
  };
  /// From one member to another.
  struct Way {
    double round_trip = 0;  ///< seconds
    double rate = 0;        ///< bytes per second
    friend bool operator==(const Way&, const Way&) = default;
  };
  std::vector<Member> members;  ///< that train, in member order
  std::vector<Way> ways;        ///< from member i to member j of M at [i M + j]
  friend bool operator==(const LineReadings&, const LineReadings&) = default;
};

/// How the run stands.
struct Standing {
  OuterConfig outer;  ///< resolved, as it is at present: of a sync_every by steps the last value counts
  FragmentLayout layout;
  std::uint64_t steps_left = 0;
  bool uplinks_known = false;  ///< the coordinator deals the chunks by them
  bool may_set_every = true, may_set_delay = true;
};

struct Proposal {
  std::int64_t every_before = 0, delay_before = 0, every = 0, delay = 0;
  /// Predicted parts of the time computing, of what the steps themselves leave: who waits for a slower
  /// replica does so whatever is set.
  double before = 0, after = 0;
  std::string cause;  ///< which line has changed, in words
  friend bool operator==(const Proposal&, const Proposal&) = default;
};

/// "outer.sync_every 10 -> 40, outer.sync_delay 2 -> 5: what eu-1 sends is 2 MB/s in place of 8 MB/s; ..."
[[nodiscard]] std::string to_string(const Proposal& proposal);

struct ReplanRules {
  double utilization = 0.99;   ///< that is wanted
  double min_seconds = 60;     ///< between two proposals, and two sync intervals at least
  std::size_t readings = 5;    ///< of which the median counts
  double confirmed_for = 15;   ///< seconds for which each reading must lead to a proposal before it is made
  std::int64_t longest = 100;  ///< interval, unless the run began with a longer one
  std::int64_t longest_delay = 10;
};

/// Rules, so that it does not flap. Up, to a longer interval or delay: where the prediction falls short of
/// what is wanted, to the cheapest (learning_cost) that reaches it with lines a tenth worse than they are;
/// where none does, to the longest if that gains something. Down: no further than to what the run began with,
/// to two thirds of the cost at most or half of the delay, and only to what does with lines a third worse
/// than they are.
class Replanner {
 public:
  /// `began` says what it never goes below, `expected` what lines the run was planned with: what is not known
  /// of them counts as having no limit.
  Replanner(const ReplanRules& rules, const OuterConfig& began, LineReadings expected = {});

  /// `seconds` never fall. Nothing while a member's step time or all round trips are not known, as long as
  /// that holds for most of the newest readings.
  [[nodiscard]] std::optional<Proposal> look(double seconds, const LineReadings& readings,
                                             const Standing& now);
  /// How many of its looks were followed by a simulation.
  [[nodiscard]] std::uint64_t simulated() const { return simulated_; }

 private:
  struct Verdict {
    LineReadings lines;  ///< of which it is
    std::int64_t every = 0, delay = 0;
    std::optional<Proposal> proposal;
  };
  [[nodiscard]] std::optional<LineReadings> smoothed() const;
  [[nodiscard]] std::optional<Proposal> judge(const LineReadings& lines, const Standing& now);
  [[nodiscard]] std::optional<OuterConfig> up(const Setting& setting, const Cut& cut,
                                              const Standing& now) const;
  [[nodiscard]] std::optional<OuterConfig> down(const Setting& setting, const Cut& cut,
                                                const Standing& now) const;
  [[nodiscard]] std::optional<OuterConfig> least(const Setting& setting, const Cut& cut, const Standing& now,
                                                 std::int64_t every, std::int64_t delay, double margin) const;

  ReplanRules rules_;
  std::int64_t min_sync_every_, min_sync_delay_;
  LineReadings expected_;  ///< before anything was measured
  LineReadings planned_;   ///< with which the present settings were chosen
  std::deque<LineReadings> newest_;
  std::optional<Verdict> verdict_;  ///< of the last simulation
  std::int64_t every_ = 0, delay_ = 0;
  double quiet_until_ = 0;
  std::optional<double> wanted_since_;  ///< a change in one direction
  bool wanted_up_ = false;
  std::uint64_t simulated_ = 0;
};

}  // namespace isthmus::outer_sync::plan
