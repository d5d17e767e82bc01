#pragma once
// The trainer's side of copying the run's state: used by joining and evicted replicas until they are in a
// view, and by observers all the time. All functions run on the trainer's thread.

#include <optional>
#include <vector>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "net/member/network_side.h"
#include "net/member/shared_state.h"

namespace isthmus::outer_sync::transport {

/// Applies the shared state's events to the trainer's loop and reports them to the network side. Functions
/// without a comment are documented at MemberNode.
class FollowerSide {
 public:
  /// All arguments must outlive it.
  FollowerSide(const NetworkConfig& network, SharedState& meet, NetworkSide& side);

  void catch_up(OuterLoop& loop);
  [[nodiscard]] bool follow(OuterLoop& loop, const std::vector<protocol::Round>& until);
  [[nodiscard]] bool has_state() const;
  [[nodiscard]] bool is_current() const;

 private:
  [[nodiscard]] std::optional<StateEvent> next_state_event(const OuterLoop& loop,
                                                           const std::vector<protocol::Round>& until);
  void learn_from(OuterLoop& loop, const StateEvent& state_event);

  const NetworkConfig network_;
  SharedState& shared_;
  NetworkSide& side_;
};

}  // namespace isthmus::outer_sync::transport
