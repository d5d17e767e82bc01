#pragma once
// The side of a replica that takes the run's state from others, facing its trainer: a joining or an evicted
// one's until it is in a view, an observer's all the time. Everything here runs on the trainer's thread.

#include <optional>
#include <vector>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "net/member/network_side.h"
#include "net/member/shared_state.h"

namespace isthmus::outer_sync::transport {

/// Takes the state_events in the shared state into the trainer's loop, and tells the network side. Functions
/// without a comment are MemberNode's of the same name.
class FollowerSide {
 public:
  /// All must outlive it.
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
