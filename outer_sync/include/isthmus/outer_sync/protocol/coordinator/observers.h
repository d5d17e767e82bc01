#pragma once
// Processes that copy the state from members and follow their rounds, in no view (docs/protocol.md,
// Observers). Owned by Coordinator.

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "isthmus/outer_sync/protocol/coordinator/roster/actions.h"
#include "isthmus/outer_sync/protocol/coordinator/roster/observations.h"
#include "isthmus/outer_sync/protocol/coordinator/roster/roster.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "isthmus/outer_sync/protocol/received.h"

namespace isthmus::outer_sync::protocol {

class Observers {
 public:
  [[nodiscard]] bool contains(ConnectionId connection) const { return observers_.contains(connection); }
  /// Without the one called `name`, which would be replaced.
  [[nodiscard]] std::size_t others_than(const std::string& name) const;
  /// Whether another process, with another incarnation, observes under this name.
  [[nodiscard]] bool has_other(const MemberInfo& info) const;
  /// Its hello was accepted. Replaces an earlier connection of the same process.
  void add(ConnectionId from, const Hello& hello, Time now, ActionQueue& out);
  /// `newest`: by fragment, the newest rounds that an observer can copy.
  void receive(ConnectionId from, const ControlMessage& message, Time now, const Bounds& bounds,
               const ChainReports& chains, const std::vector<Round>& newest, ActionQueue& out);
  /// Whether an observer was on this connection.
  bool closed(ConnectionId connection, ActionQueue& out);
  /// Drops the first observer that has been silent for longer than `patience`.
  void drop_silent(Time now, Time patience, ActionQueue& out);
  /// Names the donors to observers that do not have them. Checks the model again: when an observer came, no
  /// member may have reported it.
  void let_copy(const Admitted& admitted, const Roster& roster, ActionQueue& out);
  /// A view begins: observers need its settings, and then its donors.
  void begin_view(const Settings& settings, ActionQueue& out);
  /// The run has ended: sends all of them these messages.
  void end(const std::vector<ControlMessage>& messages, ActionQueue& out);

 private:
  struct Observer {
    Hello hello;
    Time heard{};
    bool admitted = false;  ///< has received the addresses of the current view's donors
  };
  using Places = std::map<ConnectionId, Observer>;
  void drop(Places::iterator place, const std::string& why, ActionQueue& out);

  Places observers_;
};

/// Sends the reason why a process cannot take part, and closes its connection.
void refuse(ConnectionId connection, const std::string& reason, ActionQueue& out);

}  // namespace isthmus::outer_sync::protocol
