#pragma once
// How members follow the others' rounds: a trainer or an observer copies the run's state and applies rounds
// to its loop, a reducer extends the hash chains. All functions run on the caller's thread.

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "net/member/io/member_driver.h"
#include "net/member/waits.h"

namespace isthmus::outer_sync::transport {

/// Applies the state events to the trainer's loop and reports them to the io thread: until a joining or
/// evicted replica is in a view, and for an observer all the time. Functions without a comment are documented
/// at MemberNode.
class Follower {
 public:
  /// All arguments must outlive it.
  Follower(const NetworkConfig& network, const Waits& waits, MemberDriver& driver);

  void catch_up(OuterLoop& loop);
  [[nodiscard]] Following follow(OuterLoop& loop, const std::vector<protocol::Round>& until);

 private:
  [[nodiscard]] bool has_state() const;
  [[nodiscard]] static bool is_current(const TrainerView& now);
  [[nodiscard]] std::optional<StateEvent> next_state_event(TrainerView& now, const OuterLoop& loop,
                                                           const std::vector<protocol::Round>& until) const;
  void learn_from(OuterLoop& loop, const StateEvent& state_event);

  const NetworkConfig network_;
  const Waits& waits_;
  MemberDriver& driver_;
  std::set<FragmentId> installed_;  ///< fragments in the loop
};

/// MemberNode::follow, after the hello was sent.
[[nodiscard]] std::optional<std::string> follow_as_reducer(const TrainerEnd& shared, MemberDriver& driver);

}  // namespace isthmus::outer_sync::transport
