#pragma once
// A member's heartbeats, what the coordinator's answers allow it, and whether rounds commit as far as can be
// seen from here. Everything here runs on the io thread.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "net/link/awake_clock.h"
#include "net/link/connection.h"
#include "net/member/rounds.h"
#include "net/member/say.h"
#include "net/member/shared_state.h"
#include "net/mesh/peer_mesh.h"
#include "net/rate/uplink_meter.h"

namespace isthmus::outer_sync::transport {

/// The clock that leases are given by. They end whatever this machine does meanwhile, so it goes on while the
/// machine sleeps.
[[nodiscard]] protocol::Time lease_time();

/// Owns the heartbeats that have not been answered, and since when the coordinator is silent.
class Heartbeats {
 public:
  /// All must outlive it. `hold`: of the connections; `reduces`: this replica has no step to make.
  Heartbeats(const NetworkConfig& network, AwakeClock::Clock::duration hold, bool reduces, AwakeClock& clock,
             PeerMesh& mesh, Rounds& rounds, const WireCounters& counters, SharedState& meet, Trace& trace,
             Say say);

  // ---- heartbeats ----

  [[nodiscard]] protocol::Heartbeat of_member();
  /// `states`: of the fragments that the trainer has; empty unless it has them all.
  [[nodiscard]] protocol::Heartbeat of_observer(const std::vector<protocol::FragmentState>& states);
  void on_reply(const protocol::HeartbeatReply& reply);
  /// What this member's line carries outwards, in place of network.rate; 0: it is measured.
  void rate_is(std::uint64_t bytes_per_second) { rate_ = bytes_per_second; }
  /// On a new connection nothing is answered that was said on another.
  void forget_unanswered() { beats_.clear(); }

  // ---- whether rounds commit ----

  /// From here on there is no coordinator. Calls after the first one change nothing, until `heard`.
  void silent();
  /// The coordinator has said something.
  void heard();
  void view_begun();
  /// The coordinator has said that rounds do not commit, and why.
  void suspended(const std::string& why);
  /// That was said of a view that this replica is not in any more.
  void evicted() { suspended_.clear(); }
  /// To be called every few hundredths of a second.
  void tick();
  /// The coordinator has been silent for `network.join_timeout`, and this replica needs it to go on. `done`:
  /// it has reached the last step.
  [[nodiscard]] bool has_waited_in_vain(bool done);

 private:
  [[nodiscard]] protocol::Heartbeat next();
  [[nodiscard]] bool is_stuck();
  void judge_commits();

  const NetworkConfig& network_;
  const AwakeClock::Clock::duration silence_;  ///< that counts as a loss
  const bool reduces_;
  AwakeClock& clock_;
  PeerMesh& mesh_;
  Rounds& rounds_;
  const WireCounters& counters_;
  SharedState& shared_;
  Trace& trace_;
  Say say_;

  std::uint64_t rate_;  ///< bytes per second; 0: not known
  UplinkMeter uplink_;
  std::uint64_t number_ = 0;                               ///< of the last heartbeat
  std::map<std::uint64_t, protocol::Time> beats_;          ///< when each was sent, of those not answered
  std::optional<AwakeClock::Clock::duration> down_since_;  ///< by clock_: nothing has been heard since
  AwakeClock::Clock::duration vouched_{};  ///< by clock_: when it was last said that this view is in force
  bool is_left_out_ = false;               ///< the view is over, and no other has begun here
  std::string suspended_;                  ///< by the coordinator, and why
};

}  // namespace isthmus::outer_sync::transport
