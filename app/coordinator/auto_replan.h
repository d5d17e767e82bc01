#pragma once
// `outer.auto` while the run goes on: the coordinator's readings go to a thread that plans, and what it
// proposes becomes a change that all agree on, as after `isthmus ctl set`.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "isthmus/outer_sync/plan/replan.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "run/experiment.h"

namespace isthmus::app {

class AutoReplan {
 public:
  using Propose = std::function<void(const config::SharedItems& items, const std::string& why)>;
  using Say = std::function<void(const std::string&)>;

  /// Both are called on the planning thread, `say` also within `look`; they must outlive this. There is
  /// nothing to do unless outer.auto asks for it. Start it after the SignalThread, so that its thread leaves
  /// signals alone.
  AutoReplan(const Experiment& experiment, Propose propose, Say say);
  ~AutoReplan();
  AutoReplan(const AutoReplan&) = delete;
  AutoReplan& operator=(const AutoReplan&) = delete;

  /// On the coordinator's thread, whenever it has heard something; simulates nothing. Returns what has been
  /// agreed since, once: cause, sync_every, sync_delay, both `..._before`, predicted_before, predicted_after,
  /// after_step.
  [[nodiscard]] std::optional<nlohmann::ordered_json> look(
      const outer_sync::protocol::Coordinator& coordinator);

  /// More are not planned for.
  static constexpr std::size_t max_replicas = 64;

 private:
  using Clock = std::chrono::steady_clock;
  struct Moment {
    double seconds = 0;
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
  outer_sync::plan::LineReadings emulated_;  ///< what TCP does not see of network.emulate
  const Clock::time_point began_ = Clock::now();
  Clock::time_point looked_;
  std::optional<std::size_t> changes_;                    ///< of the settings, as they were looked at last
  bool every_by_hand_ = false, delay_by_hand_ = false;    ///< somebody has set it
  std::optional<outer_sync::plan::Replanner> replanner_;  ///< the planning thread's
  std::mutex mutex_;                                      ///< of what follows
  std::condition_variable changed_;
  std::optional<Moment> newest_;
  std::optional<outer_sync::plan::Proposal> proposed_;  ///< not agreed yet
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace isthmus::app
