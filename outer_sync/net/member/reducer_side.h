#pragma once
// What a member that only reduces does where others train. Everything here runs on the caller's thread.

#include <map>
#include <optional>
#include <string>

#include "net/member/network_side.h"
#include "net/member/shared_state.h"

namespace isthmus::outer_sync::transport {

/// Extends the hash chains of the rounds that come to the shared state, and tells the network side.
class ReducerSide {
 public:
  /// All must outlive it.
  ReducerSide(SharedState& meet, NetworkSide& side) : shared_(meet), side_(side) {}

  /// Until the run has ended, or this member has left it: MemberNode::follow, once hello was said.
  [[nodiscard]] std::optional<std::string> follow();

 private:
  [[nodiscard]] std::map<SharedState::Place, RoundResult>::iterator next_to_follow();

  SharedState& shared_;
  NetworkSide& side_;
};

}  // namespace isthmus::outer_sync::transport
