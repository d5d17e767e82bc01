#pragma once
// When a process that has ended is started again: later each time, so that a machine that is away for a while
// does not use up all restarts at once. `launch` asks for its processes, a site's agent for those of its
// site.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace isthmus::app {

class Restarts {
 public:
  using Clock = std::chrono::steady_clock;
  /// `most`: of each process that died.
  explicit Restarts(std::int64_t most) : most_(most) {}

  enum class Cause {
    died,    ///< killed or crashed: counts
    failed,  ///< it has said why: its disk is full, say. Counts, and is not tried again at once
    lost,    ///< it has lost its peers, or its machine was lost: does not count
  };
  /// Of a worker's exit status, in a run that has begun. Nothing for a good end, a config that is wrong, a
  /// divergence, and one that was asked to leave.
  [[nodiscard]] static std::optional<Cause> cause_of(int status);
  /// After any exit status but those of a good end, a stop and a divergence: with the config that it began
  /// with, it is the machine that lacks something.
  [[nodiscard]] static bool coordinator_returns(int status);
  enum class Answer { now, later, no };
  /// Asked again and again about one that has ended; `now` is given once for each end.
  [[nodiscard]] Answer ask(const std::string& name, Cause cause, Clock::time_point now);
  /// How often it was started again.
  [[nodiscard]] std::int64_t of(const std::string& name) const;
  /// Before the next one, after so many in a row: none, then a second, doubling to a minute.
  [[nodiscard]] static std::chrono::seconds pause(std::int64_t in_a_row);

  /// So long one that has failed waits at least: the run may be about to end, and its reason is to be seen.
  static constexpr std::chrono::seconds after_failure{10};
  /// One that ran for so long before it ended begins a new row.
  static constexpr std::chrono::minutes settled{10};

 private:
  struct Process {
    std::int64_t restarts = 0, deaths = 0, in_a_row = 0;
    Clock::time_point at;  ///< the last start, or the next while it waits
    bool waits = false;
  };
  std::int64_t most_;
  std::map<std::string, Process> processes_;
};

}  // namespace isthmus::app
