#pragma once
// What happens to a run, as its coordinator sees it from one moment to the next.

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "coordinator/event_hook.h"
#include "isthmus/outer_sync/protocol/coordinator.h"
#include "run/experiment.h"

namespace isthmus::app {

/// Tells the hook, and people where nobody else does. Kinds: member_lost (name, site, site_left: members that
/// are left there), suspended (reason), non_finite (name, step), disk_low (name, free_bytes; the
/// coordinator's own name is "coordinator"), replanned (what AutoReplan says), and when the run is over
/// finished, stopped, diverged or failed (reason). All have run, step and time (seconds since 1970).
class RunEvents {
 public:
  /// Both must outlive it.
  RunEvents(const Experiment& experiment, EventHook& hook, EventHook::Say say);

  void look(const outer_sync::protocol::Coordinator& coordinator);
  void replanned(const nlohmann::ordered_json& change) { fire("replanned", change); }
  void ended(const outer_sync::protocol::Ended& ended);

 private:
  void look_for_losses(const outer_sync::protocol::Coordinator& coordinator);
  void look_at_disk(const std::string& name, std::uint64_t free_bytes);
  void fire(const std::string& kind, nlohmann::ordered_json event);

  const Experiment& experiment_;
  EventHook& hook_;
  EventHook::Say say_;
  std::uint64_t step_ = 0;
  std::map<std::string, std::string> sites_;  ///< of the trainers and reducers that were here, by name
  std::string obstacle_;
  std::set<std::string> not_finite_, low_;  ///< of whom it was said
};

}  // namespace isthmus::app
