#pragma once
// Faults that are injected into a run: "kill eu-1 at step 300".

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/config.h"

namespace isthmus::app {

struct Fault {
  enum class What {
    kill,     ///< SIGKILL; the worker comes back if run.restarts allows it
    suspend,  ///< SIGSTOP, and SIGCONT after `time`
    leave,    ///< SIGTERM, which makes a worker leave the run
  };
  What what = What::kill;
  std::string worker;  ///< its name, or "coordinator"
  std::uint64_t step = 0;
  config::Duration time;
  std::string text;  ///< as written in the file
};

/// "kill NAME at step N", "leave NAME at step N" or "suspend NAME at step N for 5s". Throws Error(config)
/// naming `place`.
[[nodiscard]] Fault parse_fault(const std::string& text, const std::string& place);

/// The process with this name among the children of `launch`; nullopt if it is not running.
[[nodiscard]] std::optional<pid_t> process_of(const std::string& name, pid_t launch);

/// Injects the faults of one run, each once, as soon as the run has reached its step.
class Saboteur {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Saboteur(std::vector<Fault> faults) : left_(std::move(faults)) {}

  /// Call repeatedly. `launch` is the parent of the processes that get the signals. Returns the injected
  /// faults, in words.
  [[nodiscard]] std::vector<std::string> strike(std::uint64_t step, pid_t launch);
  /// Faults that have not been injected yet.
  [[nodiscard]] const std::vector<Fault>& left() const { return left_; }

 private:
  struct Suspended {
    std::string worker;
    Clock::time_point until;
  };
  void wake(pid_t launch);

  std::vector<Fault> left_;
  std::vector<Suspended> suspended_;
};

}  // namespace isthmus::app
