#pragma once
// A reducer's counterpart of the trainer side. All functions run on the caller's thread.

#include <map>
#include <optional>
#include <string>

#include "net/member/network_side.h"
#include "net/member/shared_state.h"

namespace isthmus::outer_sync::transport {

/// Extends the hash chains with the rounds in the shared state, and reports them to the network side.
class ReducerSide {
 public:
  /// All arguments must outlive it.
  ReducerSide(SharedState& meet, NetworkSide& side) : shared_(meet), side_(side) {}

  /// MemberNode::follow, after the hello was sent: runs until the run has ended or this member has left it.
  [[nodiscard]] std::optional<std::string> follow();

 private:
  [[nodiscard]] std::map<SharedState::Place, RoundResult>::iterator next_to_follow();

  SharedState& shared_;
  NetworkSide& side_;
};

}  // namespace isthmus::outer_sync::transport
