#pragma once
// What happens to a run, as its coordinator sees it from one moment to the next.

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "coordinator/event_hook.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "run/experiment.h"

namespace isthmus::app {

/// Tells the hook, and people where nobody else does. Kinds and fields are those of docs/operations.md,
/// "Events"; all have run, step and time. Called on the coordinator's thread.
class RunEvents {
 public:
  /// Both must outlive it.
  RunEvents(const Experiment& experiment, EventHook& hook, EventHook::Say say);

  void look(const outer_sync::protocol::Coordinator& coordinator);
  void replanned(const nlohmann::ordered_json& change) { fire("replanned", change); }
  void gathering_stopped(const std::string& why);
  /// `stopped`: somebody has stopped it.
  void ended(const outer_sync::protocol::Ended& ended, bool stopped);

 private:
  void look_for_losses(const outer_sync::protocol::Coordinator& coordinator);
  void look_for_obstacles(const outer_sync::protocol::Coordinator& coordinator);
  void look_for_checkpoints(const outer_sync::protocol::Coordinator& coordinator);
  void look_at_disk(const std::string& name, std::uint64_t free_bytes);
  void fire(const std::string& kind, nlohmann::ordered_json event);

  const Experiment& experiment_;
  EventHook& hook_;
  EventHook::Say say_;
  std::uint64_t step_ = 0;
  std::map<std::string, std::string> sites_;  ///< of the trainers and reducers that were here, by name
  std::string obstacle_;
  std::uint64_t resumed_from_ = 0, checkpoint_ = 0;  ///< steps of which was told
  std::set<std::string> not_finite_, low_;           ///< of whom it was said
};

}  // namespace isthmus::app
