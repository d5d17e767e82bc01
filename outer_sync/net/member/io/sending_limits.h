#pragma once
// How fast a member may send at present: by `network.rate`, and by `network.calendar` where that has an entry
// for the time. MemberDriver owns it and calls it on the io thread.

#include <optional>
#include <string>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/core/calendar.h"
#include "net/member/io/crossing.h"
#include "net/member/io/heartbeats.h"
#include "net/member/io/state_server.h"
#include "net/mesh/peer_mesh.h"

namespace isthmus::outer_sync::transport {

class SendingLimits {
 public:
  /// All arguments must outlive it.
  SendingLimits(const NetworkConfig& network, PeerMesh& mesh, Heartbeats& heartbeats, IoEnd shared, Say say);
  /// The state that this member serves counts as sent, too. `giver` must outlive this.
  void also_limit(StateServer& giver) { giver_ = &giver; }

  /// Throws Error(config) if the value is invalid.
  void set_rate(const std::string& value);
  void set_calendar(const std::string& value);
  [[nodiscard]] const std::string& calendar() const { return calendar_.text(); }
  /// Call every few hundredths of a second.
  void tick(WallTime now);

 private:
  void apply(WallTime now);

  PeerMesh& mesh_;
  Heartbeats& heartbeats_;
  const IoEnd shared_;
  Say say_;
  StateServer* giver_ = nullptr;
  std::uint64_t rate_;  ///< network.rate in bytes per second; 0: none
  const std::uint64_t join_rate_;
  Calendar calendar_;
  std::optional<WallTime> applied_at_;
  std::optional<Allowance> allowance_;  ///< by the calendar's entry for that time
  bool gives_ = false;                  ///< this member served its state then
};

}  // namespace isthmus::outer_sync::transport
