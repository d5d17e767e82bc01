#pragma once
// A member's heartbeats, the leases in the coordinator's replies, and this member's judgement whether rounds
// commit.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/protocol/messages/heartbeats.h"
#include "isthmus/outer_sync/protocol/messages/state.h"
#include "net/link/awake_clock.h"
#include "net/link/connection.h"
#include "net/member/io/crossing.h"
#include "net/member/io/rounds.h"
#include "net/mesh/peer_mesh.h"
#include "net/rate/uplink_meter.h"

namespace isthmus::outer_sync::transport {

/// The clock of the leases. It keeps running while the machine sleeps, since leases expire then too.
[[nodiscard]] protocol::Time lease_time();

/// Owns the unanswered heartbeats, and the time since which the coordinator has been silent.
class Heartbeats {
 public:
  /// All arguments must outlive it. `hold`: delay of the connections (emulation); `reduces`: this member is a
  /// reducer.
  Heartbeats(const NetworkConfig& network, AwakeClock::Clock::duration hold, bool reduces, AwakeClock& clock,
             PeerMesh& mesh, Rounds& rounds, const WireCounters& counters, IoEnd shared, Trace& trace,
             Say say);

  // ---- heartbeats ----

  [[nodiscard]] protocol::Heartbeat of_member();
  /// `states`: of all fragments; empty until the trainer has them all.
  [[nodiscard]] protocol::Heartbeat of_observer(const std::vector<protocol::FragmentState>& states);
  void on_reply(const protocol::HeartbeatReply& reply);
  /// Sets the rate of this member's link that heartbeats report; 0: measure it. At first network.rate.
  void rate_is(std::uint64_t bytes_per_second) {
    rate_ = bytes_per_second;
    uplink_ = {};
  }
  /// Call on a new connection: it brings no replies to older heartbeats.
  void forget_unanswered() { beats_.clear(); }

  // ---- whether rounds commit ----

  /// The coordinator is unreachable. Further calls have no effect until `heard`.
  void silent();
  /// A message from the coordinator has arrived.
  void heard();
  void view_begun();
  /// The coordinator has reported that rounds do not commit, and why.
  void suspended(const std::string& why);
  /// Forgets `suspended`: it concerned a view that this replica has left.
  void evicted() { suspended_.clear(); }
  /// Call every few hundredths of a second.
  void tick();
  /// True if this replica needs the coordinator to continue, and that has been silent for
  /// `network.join_timeout`. `done`: this replica has reached the last step.
  [[nodiscard]] bool has_waited_in_vain(bool done);

 private:
  [[nodiscard]] protocol::Heartbeat next();
  [[nodiscard]] bool is_stuck();
  void judge_commits();

  const NetworkConfig& network_;
  const AwakeClock::Clock::duration silence_;  ///< a silence longer than this counts as a loss
  const bool reduces_;
  AwakeClock& clock_;
  PeerMesh& mesh_;
  Rounds& rounds_;
  const WireCounters& counters_;
  const IoEnd shared_;
  Trace& trace_;
  Say say_;

  std::uint64_t rate_;  ///< bytes per second; 0: measured
  UplinkMeter uplink_;
  std::uint64_t number_ = 0;                               ///< of the last heartbeat
  std::map<std::uint64_t, protocol::Time> beats_;          ///< unanswered heartbeats: number and time sent
  std::optional<AwakeClock::Clock::duration> down_since_;  ///< by clock_: coordinator silent since
  AwakeClock::Clock::duration vouched_{};                  ///< by clock_: when this view was last confirmed
  bool is_left_out_ = false;  ///< this replica's view has ended, and no new one has begun here
  std::string suspended_;     ///< reason that the coordinator gave; empty: not suspended
};

}  // namespace isthmus::outer_sync::transport
