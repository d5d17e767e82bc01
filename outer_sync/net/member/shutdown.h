#pragma once
// How a member comes to an end: the agreed stop, the last step, and leaving before either. Everything here
// runs on the io thread.

#include <optional>
#include <string>

#include "isthmus/outer_sync/protocol/messages.h"
#include "net/link/connection.h"
#include "net/link/control_link.h"
#include "net/member/shared_state.h"

namespace isthmus::outer_sync::transport {

/// Owns what this member says at its end, so that a coordinator that comes back hears it again. What the
/// trainer must know is in the shared state.
class Shutdown {
 public:
  /// All must outlive it. `reduces`: this member has no steps, and ends when those who train have stopped.
  Shutdown(ControlLink& control, SharedState& meet, const WireCounters& counters, bool reduces)
      : control_(control), shared_(meet), counters_(counters), reduces_(reduces) {}

  /// Asks the coordinator for a stop that all share. Who trains and has none stops where it is.
  void request_stop(const std::string& reason);
  void on_hold();
  void on_stop_at(std::uint64_t step);
  /// This member has reached the last step.
  void done(protocol::Done done);
  [[nodiscard]] bool is_done() const { return done_.has_value(); }

  void leave(const std::string& reason);
  [[nodiscard]] bool is_leaving() const { return leaving_; }
  /// A connection to the coordinator has ended; true when there need be no other.
  [[nodiscard]] bool ends_with_connection();

  /// Says again what a coordinator that has come back, or came after the one that was told, does not know.
  void repeat();

 private:
  void say_done();

  ControlLink& control_;
  SharedState& shared_;
  const WireCounters& counters_;
  const bool reduces_;
  std::optional<protocol::Done> done_;
  bool leaving_ = false;
};

}  // namespace isthmus::outer_sync::transport
