#pragma once
// `outer.auto` during a run: the coordinator passes its readings to a planning thread. The proposals of that
// thread become changes that all members agree on, as after `isthmus ctl set`.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "coordinator/replan/replan_readings.h"
#include "isthmus/outer_sync/plan/replan.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

class AutoReplan {
 public:
  using Propose = std::function<void(const config::SharedItems& items, const std::string& why)>;
  using Say = std::function<void(const std::string&)>;

  /// `propose` and `say` are called on the planning thread, `say` also within `look`; they must outlive this
  /// object. Does nothing unless outer.auto asks for it. Create it after the SignalThread, so that the
  /// planning thread receives no signals.
  AutoReplan(const Experiment& experiment, Propose propose, Say say,
             const outer_sync::plan::ReplanTuning& tuning = {});
  ~AutoReplan();
  AutoReplan(const AutoReplan&) = delete;
  AutoReplan& operator=(const AutoReplan&) = delete;

  /// Called on the coordinator's thread after each message; runs no simulation. Returns the change that has
  /// been agreed since the last call, once: cause, sync_every, sync_delay, both `..._before`,
  /// predicted_before, predicted_after, after_step.
  [[nodiscard]] std::optional<nlohmann::ordered_json> look(
      const outer_sync::protocol::Coordinator& coordinator);

  /// Runs with more replicas are not planned.
  static constexpr std::size_t max_replicas = 64;

 private:
  using Clock = std::chrono::steady_clock;
  struct Moment {
    double seconds = 0;
    bool calendar_changed = false;
    outer_sync::plan::LineReadings lines;
    outer_sync::plan::Standing standing;
  };
  [[nodiscard]] std::optional<nlohmann::ordered_json> look_at_changes(
      const outer_sync::protocol::Settings& settings);
  void work();
  void plan(const Moment& moment);

  const Experiment& experiment_;
  const Propose propose_;
  const Say say_;
  const bool asked_for_;
  outer_sync::plan::LineReadings emulated_;  ///< the part of network.emulate that TCP does not see
  const Clock::time_point began_ = Clock::now();
  Clock::time_point looked_;
  CalendarLimits limits_;               ///< at the last look
  std::optional<std::size_t> changes_;  ///< number of changes of the settings at the last look
  bool every_by_hand_ = false, delay_by_hand_ = false;    ///< an operator has set the key
  std::optional<outer_sync::plan::Replanner> replanner_;  ///< used only by the planning thread
  std::mutex mutex_;                                      ///< guards the members below
  std::condition_variable changed_;
  std::optional<Moment> newest_;
  std::optional<outer_sync::plan::Proposal> proposed_;  ///< not agreed yet
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace isthmus::app
