#pragma once
// How a member ends: the agreed stop, the last step, or leaving early.

#include <optional>
#include <string>

#include "isthmus/outer_sync/protocol/messages/ending.h"
#include "net/link/connection.h"
#include "net/link/control_link.h"
#include "net/member/io/crossing.h"

namespace isthmus::outer_sync::transport {

/// Keeps the messages that this member sends at its end, so that a restarted coordinator receives them again.
class Shutdown {
 public:
  /// All arguments must outlive it. `reduces`: this member is a reducer. It has no steps and ends when the
  /// trainers have stopped.
  Shutdown(ControlLink& control, IoEnd shared, const WireCounters& counters, bool reduces)
      : control_(control), shared_(shared), counters_(counters), reduces_(reduces) {}

  /// Asks the coordinator to stop all members at one step. A trainer without a coordinator stops where it is.
  void request_stop(const std::string& reason);
  void on_hold();
  void on_stop_at(std::uint64_t step);
  /// This member has reached the last step.
  void done(protocol::Done done);
  [[nodiscard]] bool is_done() const { return done_.has_value(); }

  void leave(const std::string& reason);
  [[nodiscard]] bool is_leaving() const { return leaving_; }
  /// The connection to the coordinator has ended. Returns true if no new one is needed.
  [[nodiscard]] bool ends_with_connection();

  /// Repeats messages that a restarted or replaced coordinator has not received.
  void repeat();

 private:
  void say_done();

  ControlLink& control_;
  const IoEnd shared_;
  const WireCounters& counters_;
  const bool reduces_;
  std::optional<protocol::Done> done_;
  bool leaving_ = false;
};

}  // namespace isthmus::outer_sync::transport
