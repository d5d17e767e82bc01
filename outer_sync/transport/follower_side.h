#pragma once
// The side of a replica that takes the run's state from others, facing its trainer: a joiner's or a displaced
// one's until it is in a view, an observer's all the time. Everything here runs on the trainer's thread.

#include <optional>
#include <vector>

#include "isthmus/outer_sync/config.h"
#include "isthmus/outer_sync/outer_loop.h"
#include "transport/network_side.h"
#include "transport/rendezvous.h"

namespace isthmus::outer_sync::transport {

/// Takes the lessons in the rendezvous into the trainer's loop, and tells the network side. Functions without
/// a comment are MemberNode's of the same name.
class FollowerSide {
 public:
  /// All must outlive it.
  FollowerSide(const NetworkConfig& network, Rendezvous& meet, NetworkSide& side);

  void catch_up(OuterLoop& loop);
  [[nodiscard]] bool follow(OuterLoop& loop, const std::vector<protocol::Round>& until);
  [[nodiscard]] bool has_state() const;
  [[nodiscard]] bool is_current() const;

 private:
  [[nodiscard]] std::optional<Lesson> next_lesson(const OuterLoop& loop,
                                                  const std::vector<protocol::Round>& until);
  void learn_from(OuterLoop& loop, const Lesson& lesson);

  const NetworkConfig network_;
  Rendezvous& meet_;
  NetworkSide& side_;
};

}  // namespace isthmus::outer_sync::transport
