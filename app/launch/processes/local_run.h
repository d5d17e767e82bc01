#pragma once
// Starts the coordinator and members of a run on this machine and watches them to their end; none is left
// behind. Base class of `launch`, `doctor` and `bench outer`.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "run/process/process.h"

namespace isthmus::app {

class LocalRun {
 public:
  virtual ~LocalRun() = default;
  LocalRun(const LocalRun&) = delete;
  LocalRun& operator=(const LocalRun&) = delete;

 protected:
  LocalRun() = default;

  /// Adds --listen and --announce-fd to `command`, starts it instead of an earlier coordinator, and blocks
  /// until it listens. Returns false if it does not: the reason is on standard error, or in `log` if given,
  /// and `watch` sees its end.
  [[nodiscard]] bool start_coordinator(std::vector<std::string> command, const std::string& listen,
                                       const std::filesystem::path& log = {});
  /// Sets the address of a coordinator that was started in another way.
  void set_address(const std::string& listen, std::uint16_t port);
  /// HOST:PORT of the coordinator.
  [[nodiscard]] const std::string& address() const { return address_; }

  /// Returns when all processes have ended. An interrupt goes to the coordinator; processes that still run
  /// `grace` later are killed. Exit status: 0 finished, 130 interrupted, 4 a process was killed, otherwise
  /// that of the process that caused the failure.
  [[nodiscard]] int watch(const std::atomic<int>& interrupts, std::chrono::duration<double> grace);

  /// Whether the run survives the loss of a process at present.
  [[nodiscard]] virtual bool elastic() const { return false; }
  /// Whether this process trains; an elastic run ends without any that does.
  [[nodiscard]] virtual bool trains(const RunProcess& /*process*/) const { return true; }
  /// Whether a process that is not among these trains or will train.
  [[nodiscard]] virtual bool others_will_train() const { return false; }
  /// Whether `keep_going` will restart this process, which has ended.
  [[nodiscard]] virtual bool will_restart(RunProcess& /*process*/) const { return false; }
  /// Whether the coordinator has ended and `keep_going` will restart it; the others continue without it.
  [[nodiscard]] virtual bool coordinator_returns() const { return false; }
  /// Called repeatedly until the run is asked to end.
  virtual void keep_going() {}

  void report_end(const RunProcess& process, int status);
  /// Whether its end was reported.
  [[nodiscard]] bool is_reported(const RunProcess& process) const {
    return reported_.contains(process.name());
  }

  std::vector<std::unique_ptr<RunProcess>> processes_;  ///< the coordinator first
  std::chrono::seconds coordinator_ends_within_{30};    ///< after all trainers have ended well

 private:
  /// When one process fails, others fail too. In ascending order of what explains the failure: lost a peer,
  /// died (killed or crashed), has a reason of its own.
  enum class Failure { none, lost_a_peer, died, has_a_reason };

  [[nodiscard]] bool any_failed();
  [[nodiscard]] bool no_trainer_left();
  void report_causes();
  void kill_rest();
  /// In an elastic run, processes that ended before an interrupt do not affect the exit status.
  void excuse_ended();
  [[nodiscard]] Failure failure_of(RunProcess& process) const;
  [[nodiscard]] int verdict(bool interrupted);
  [[nodiscard]] int exit_status_of_successful();

  std::optional<std::chrono::steady_clock::time_point> no_trainer_since_;
  std::string address_;
  std::set<std::string> killed_;        ///< by this process
  std::set<std::string> ended_before_;  ///< ended before the interrupt, in an elastic run
  std::set<std::string> reported_;      ///< their end was reported
};

}  // namespace isthmus::app
