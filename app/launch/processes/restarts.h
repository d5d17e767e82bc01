#pragma once
// When to restart a process that has ended: with growing pauses, so that a machine that is away for a while
// does not use up all restarts at once. Used by `launch` for its processes and by a site's agent for those of
// its site.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace isthmus::app {

class Restarts {
 public:
  using Clock = std::chrono::steady_clock;
  /// `max_restarts`: of each process that died.
  explicit Restarts(std::int64_t max_restarts) : max_restarts_(max_restarts) {}

  enum class Cause {
    died,    ///< killed or crashed: counts
    failed,  ///< ended with a reason, such as a full disk: counts, and waits longer
    lost,    ///< lost its peers or its machine: does not count
  };
  /// Cause for a worker's exit status in a run that has begun. nullopt if it must stay ended: success, a
  /// wrong config, a divergence, or a request to leave.
  [[nodiscard]] static std::optional<Cause> cause_of(int status);
  /// True for any exit status except success, a stop and a divergence: the config was valid when it started,
  /// so the cause is the machine.
  [[nodiscard]] static bool coordinator_returns(int status);
  enum class Answer { now, later, no };
  /// Called repeatedly for a process that has ended; returns `now` once for each end.
  [[nodiscard]] Answer ask(const std::string& name, Cause cause, Clock::time_point now);
  /// Number of restarts of this process.
  [[nodiscard]] std::int64_t of(const std::string& name) const;
  /// Pause before the next restart after `in_a_row` restarts: none, then a second, doubling to a minute.
  [[nodiscard]] static std::chrono::seconds pause(std::int64_t in_a_row);

  /// Minimum pause after `failed`: the run may be about to end, and the reason should be seen first.
  static constexpr std::chrono::seconds after_failure{10};
  /// A process that ran this long before it ended starts a new row.
  static constexpr std::chrono::minutes settled{10};

 private:
  struct Process {
    std::int64_t restarts = 0, deaths = 0, in_a_row = 0;
    Clock::time_point at;  ///< the last start, or the next while it waits
    bool waits = false;
  };
  std::int64_t max_restarts_;
  std::map<std::string, Process> processes_;
};

}  // namespace isthmus::app
