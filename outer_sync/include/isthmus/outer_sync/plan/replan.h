#pragma once
// Plans again during a run: decides from what members measure of their links whether the wanted utilisation
// needs other values of sync_every and sync_delay. No clock, no sockets: readings go in, at most one proposal
// comes out.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/outer_sync/plan/predict.h"

namespace isthmus::outer_sync::plan {

/// Measurements of a run's links at one time; 0: unknown.
struct LineReadings {
  struct Member {
    std::string name;
    double step_seconds = 0;  ///< of an inner step, waits excluded
    double up = 0;            ///< bytes per second that it can send to all others together
    friend bool operator==(const Member&, const Member&) = default;
  };
  /// The path from one member to another.
  struct Way {
    double round_trip = 0;  ///< seconds
    double rate = 0;        ///< bytes per second
    friend bool operator==(const Way&, const Way&) = default;
  };
  std::vector<Member> members;  ///< the trainers, in member order
  std::vector<Way> ways;        ///< from member i to member j of M at [i M + j]
  friend bool operator==(const LineReadings&, const LineReadings&) = default;
};

/// The run's present state.
struct Standing {
  /// Resolved, with live changes. If sync_every changes with the step, its last value is used.
  OuterConfig outer;
  FragmentLayout layout;
  std::uint64_t steps_left = 0;
  bool uplinks_known = false;  ///< the coordinator assigns the chunks by upload rates
  bool may_set_every = true, may_set_delay = true;
};

struct Proposal {
  std::int64_t every_before = 0, delay_before = 0, every = 0, delay = 0;
  /// Predicted shares of the time spent computing. Waits for slower replicas do not count, because no setting
  /// changes them.
  double before = 0, after = 0;
  std::string cause;  ///< which measurement has changed, in words
  friend bool operator==(const Proposal&, const Proposal&) = default;
};

/// "outer.sync_every 10 -> 40, outer.sync_delay 2 -> 5: the upload rate of eu-1 is 2 Mbit/s instead of 8
/// Mbit/s; ..."
[[nodiscard]] std::string to_string(const Proposal& proposal);

/// When a change is worth making. `rest` is 1 minus the wanted utilisation. Set by hand: docs/plan.md
/// compares them with values tuned over simulated links. Only tests and benchmarks use other values.
struct ReplanTuning {
  double margin_up = 0.1;        ///< share by which links may get worse after a change to higher values
  double margin_down = 1.0 / 3;  ///< the same after a change to lower values
  double tolerated = 0.2;        ///< a shortfall below this share of `rest` causes no change
  double gain_part = 0.25;       ///< a change up must gain at least this share of `rest`,
  double min_gain = 0.002;       ///< and at least this
  double cheaper = 2.0 / 3;      ///< a change down must leave at most this share of the learning cost
  double alike = 0.05;           ///< measurements that differ by less than this share count as equal
  double intervals_between = 2;  ///< minimum time between two proposals, in sync intervals
  double confirmed = 0.25;       ///< share of `min_seconds` for which every reading must ask for a change
  std::size_t readings = 5;      ///< number of newest readings, of which the median is used
  friend bool operator==(const ReplanTuning&, const ReplanTuning&) = default;
};

struct ReplanRules {
  double utilization = 0.99;   ///< the wanted utilisation
  double min_seconds = 60;     ///< minimum time between two proposals
  std::int64_t longest = 100;  ///< maximum interval, unless the run began with a longer one
  std::int64_t longest_delay = 10;
  ReplanTuning tuning{};
};

/// Rules against flapping. Up, to a longer interval or delay: if the prediction falls short of the wanted
/// utilisation, propose the cheapest values (learning_cost) that reach it with links a tenth worse than
/// measured; if none do, the longest ones, provided they gain something. Down: never below the values that
/// the run began with, only if the cost falls to two thirds or the delay to half, and only to values that
/// suffice with links a third worse than measured.
class Replanner {
 public:
  /// `began`: settings below which it never goes. `expected`: the links that the run was planned with;
  /// unknown values of them count as unlimited.
  Replanner(const ReplanRules& rules, const OuterConfig& began, LineReadings expected = {});

  /// `seconds` must never decrease. Returns nullopt while a member's step time or all round trips are unknown
  /// in most of the newest readings.
  [[nodiscard]] std::optional<Proposal> look(double seconds, const LineReadings& readings,
                                             const Standing& now);
  /// The links have just changed by a calendar. The next proposal therefore needs neither to be confirmed nor
  /// to be a while after the last one.
  void calendar_changed();
  /// Number of calls of `look` that ran a simulation.
  [[nodiscard]] std::uint64_t simulated() const { return simulated_; }

 private:
  struct Verdict {
    LineReadings lines;  ///< the links it was made for
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
  LineReadings planned_;   ///< the links for which the present settings were chosen
  std::deque<LineReadings> newest_;
  std::optional<Verdict> verdict_;  ///< of the last simulation
  std::int64_t every_ = 0, delay_ = 0;
  double quiet_until_ = 0;
  std::optional<double> wanted_since_;  ///< since when a change in one direction has been wanted
  bool wanted_up_ = false;
  bool changed_by_calendar_ = false;  ///< since the last judgement
  std::uint64_t simulated_ = 0;
};

}  // namespace isthmus::outer_sync::plan
