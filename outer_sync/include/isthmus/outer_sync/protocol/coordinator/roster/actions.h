#pragma once
// The coordinator's orders to its caller: messages to send, connections to close, lines for the log,
// files to write. In order.

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "isthmus/outer_sync/protocol/coordinator/roster/options.h"
#include "isthmus/outer_sync/protocol/health.h"
#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync::protocol {

using ConnectionId = std::uint64_t;

struct SendControl {
  ConnectionId to;
  ControlMessage message;
};
/// Close the connection after all queued messages have been sent.
struct CloseConnection {
  ConnectionId connection;
};
/// A line for the log.
struct Say {
  std::string text;
  bool of_stranger = false;  ///< an unknown peer caused it: such lines can be many, and contain any words
};
/// Write to disk before any later message is sent, then log `line`.
struct Store {
  LastView view;
  std::string line;
  bool again = false;  ///< the view is announced already: nothing waits, and a failed write does no harm
};
/// All members have reported their share of one evaluation. `loss` in nats per token.
struct Evaluated {
  std::uint64_t step;
  double loss;
};
/// A heartbeat has arrived or a view has begun: `members()` has changed.
struct MembersChanged {};
/// A status query: reply, then close the connection.
struct StatusAsked {
  ConnectionId from;
};
/// New records of a member, in order. They must be stored when this action has been carried out: the next
/// message acknowledges them.
struct Gathered {
  std::string member;
  std::uint64_t incarnation = 0;
  std::uint64_t left_out = 0;  ///< earlier records that the member could not keep until they were sent
  std::vector<Record> records;
};
struct Ended {
  /// `finished`: also a run that was stopped at one agreed step. `stopped`: it was stopped before its first
  /// step, or its members stopped at different rounds.
  enum class How { finished, stopped, diverged, failed } how;
  std::string reason;  ///< empty when finished
};
using CoordinatorAction = std::variant<SendControl, CloseConnection, Say, Store, Evaluated, MembersChanged,
                                       Ended, RoundJudged, StatusAsked, Gathered>;

/// The actions of one input, in order, and the connections given up that have not closed yet.
class ActionQueue {
 public:
  void add(CoordinatorAction action) { actions_.push_back(std::move(action)); }
  void say(std::string text) { add(Say{std::move(text)}); }
  void say_of_stranger(std::string text) { add(Say{std::move(text), true}); }
  void send(ConnectionId to, ControlMessage message) { add(SendControl{to, std::move(message)}); }
  void close(ConnectionId connection) {
    closing_.insert(connection);
    add(CloseConnection{connection});
  }
  /// Messages of such a connection were in transit when it was given up.
  [[nodiscard]] bool is_closing(ConnectionId connection) const { return closing_.contains(connection); }
  void closed(ConnectionId connection) { closing_.erase(connection); }
  [[nodiscard]] std::vector<CoordinatorAction> take() { return std::exchange(actions_, {}); }

 private:
  std::vector<CoordinatorAction> actions_;
  std::set<ConnectionId> closing_;
};

}  // namespace isthmus::outer_sync::protocol
