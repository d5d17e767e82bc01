#pragma once
// Events of a run, from what its coordinator sees.

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "coordinator/events/event_hook.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

/// Passes events to the hook, and prints messages that nothing else prints. docs/reference/events.md
/// lists kinds and fields; all events have run, step and time. Called on the coordinator's thread.
class RunEvents {
 public:
  /// `experiment` and `hook` must outlive this object. `note` gets a line for each event, for the dashboard.
  RunEvents(const Experiment& experiment, EventHook& hook, EventHook::Say say, EventHook::Say note);

  void look(const outer_sync::protocol::Coordinator& coordinator);
  void replanned(const nlohmann::ordered_json& change) { fire("replanned", change); }
  void gathering_stopped(const std::string& why);
  /// `stopped`: the run was stopped before its end.
  void ended(const outer_sync::protocol::Ended& ended, bool stopped);

 private:
  void look_for_losses(const outer_sync::protocol::Coordinator& coordinator);
  void look_for_obstacles(const outer_sync::protocol::Coordinator& coordinator);
  void look_for_checkpoints(const outer_sync::protocol::Coordinator& coordinator);
  void look_at_disk(const std::string& name, std::uint64_t free_bytes);
  void fire(const std::string& kind, nlohmann::ordered_json event);

  const Experiment& experiment_;
  EventHook& hook_;
  EventHook::Say say_, note_;
  std::uint64_t step_ = 0;
  std::map<std::string, std::string> sites_;  ///< by name, of the trainers and reducers present
  std::string obstacle_;
  std::uint64_t resumed_from_ = 0, checkpoint_ = 0;  ///< steps already reported
  std::set<std::string> not_finite_, low_;           ///< members already reported
};

}  // namespace isthmus::app
