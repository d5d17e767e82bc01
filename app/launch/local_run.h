#pragma once
// The processes of a run on this machine: a coordinator, and those that join it. They are watched to their
// end, and none is left behind. `launch` and `bench outer` say which they are.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "run/process.h"

namespace isthmus::app {

class LocalRun {
 public:
  virtual ~LocalRun() = default;
  LocalRun(const LocalRun&) = delete;
  LocalRun& operator=(const LocalRun&) = delete;

 protected:
  LocalRun() = default;

  /// `command` gets --listen and --announce-fd. Blocks until the coordinator listens; false if it does not:
  /// it has said why on standard error, or in `log` where one is given, and `watch` sees it end. One that was
  /// there before is replaced.
  [[nodiscard]] bool start_coordinator(std::vector<std::string> command, const std::string& listen,
                                       const std::filesystem::path& log = {});
  /// Of a coordinator that was started otherwise.
  void set_address(const std::string& listen, std::uint16_t port);
  /// HOST:PORT of the coordinator.
  [[nodiscard]] const std::string& address() const { return address_; }

  /// Until all have ended. An interrupt goes to the coordinator; what still runs `grace` later is killed.
  /// Exit status: 0 finished, 130 interrupted, otherwise that of the process that knows what went wrong; 4
  /// when one was killed.
  [[nodiscard]] int watch(const std::atomic<int>& interrupts, std::chrono::duration<double> grace);

  /// Whether a loss does not end the run at present.
  [[nodiscard]] virtual bool elastic() const { return false; }
  /// Whether an elastic run needs one of its kind.
  [[nodiscard]] virtual bool trains(const RunProcess& /*process*/) const { return true; }
  /// Whether somebody trains, or will, who is none of these processes at present.
  [[nodiscard]] virtual bool more_will_train() const { return false; }
  /// Whether a process that has ended is to be started again by `keep_going`.
  [[nodiscard]] virtual bool comes_back(RunProcess& /*process*/) const { return false; }
  /// Whether the coordinator has ended, and is to be started again by `keep_going`: the others go on without
  /// it.
  [[nodiscard]] virtual bool coordinator_returns() const { return false; }
  /// Called again and again until somebody wants the run to end.
  virtual void keep_going() {}

  void describe(const RunProcess& process, int status);
  /// Whether its end was spoken of.
  [[nodiscard]] bool told(const RunProcess& process) const { return told_.contains(process.name()); }

  std::vector<std::unique_ptr<RunProcess>> processes_;  ///< the coordinator first
  std::chrono::seconds coordinator_ends_within_{30};    ///< after all that train have ended well

 private:
  /// Several processes fail when one does. Those that know what is wrong count before one that was killed or
  /// crashed, and both before those that only lost somebody.
  enum class Failure { none, lost_a_peer, died, has_a_reason };

  [[nodiscard]] bool somebody_failed();
  [[nodiscard]] bool nobody_will_train();
  void kill_rest();
  /// An elastic run had gone on without them when it was interrupted: its end is not theirs.
  void excuse_those_who_ended();
  [[nodiscard]] Failure failure_of(RunProcess& process) const;
  [[nodiscard]] int verdict(bool interrupted);
  [[nodiscard]] int exit_status_of_the_sound();

  std::optional<std::chrono::steady_clock::time_point> nobody_trains_since_;
  std::string address_;
  std::set<std::string> killed_;        ///< by us
  std::set<std::string> ended_before_;  ///< the interrupt, in an elastic run
  std::set<std::string> told_;          ///< whose end was spoken of
};

}  // namespace isthmus::app
