#pragma once
// The coordinator's side: who takes part, the view, the agreed stop, and whether all members still agree. A
// pure state machine: messages and the time go in, actions come out. No parameter bytes pass through it.

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "isthmus/outer_sync/layout.h"
#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync::protocol {

using Time = std::chrono::microseconds;  ///< since any fixed moment
using ConnectionId = std::uint64_t;

struct CoordinatorOptions {
  std::string run;
  std::size_t replicas = 1;
  ConfigItems config;  ///< agreed and live keys that every member must share
  Digest token;        ///< unguessable; members show it to each other
  Time join_timeout{};
  Time detect_timeout{};
};

struct SendControl {
  ConnectionId to;
  ControlMessage message;
};
/// Close after what was sent has left.
struct CloseConnection {
  ConnectionId connection;
};
/// A line for people.
struct Say {
  std::string text;
};
/// All members' shares of one evaluation are in. `loss` in nats per token.
struct Evaluated {
  std::uint64_t step;
  double loss;
};
/// A heartbeat came in; `members` of the state machine is fresh.
struct MembersChanged {};
struct Ended {
  /// `finished` is also how a run ends that was stopped in mid-run; `stopped` is one that had not begun.
  enum class How { finished, stopped, diverged, failed } how;
  std::string reason;  ///< empty when finished
};
using CoordinatorAction = std::variant<SendControl, CloseConnection, Say, Evaluated, MembersChanged, Ended>;

class Coordinator {
 public:
  struct MemberStatus {
    ConnectionId connection = 0;
    Hello hello;
    Time heard{};
    bool sealed = false, held = false, done = false;
    Sealed state;
    std::uint64_t held_step = 0;
    Heartbeat heartbeat;
    Done result;
  };

  /// `started`: the join time-out runs from here. The layout comes with the members' Hello: the coordinator
  /// needs no model.
  Coordinator(CoordinatorOptions options, Time started);

  void receive(ConnectionId from, Time now, const ControlMessage& message);
  void closed(ConnectionId connection);
  void tick(Time now);
  /// Ends the run at a step that all members share.
  void request_stop(const std::string& reason);

  [[nodiscard]] std::vector<CoordinatorAction> take_actions() { return std::exchange(actions_, {}); }
  /// By name, in member order once the view has begun.
  [[nodiscard]] const std::map<std::string, MemberStatus>& members() const { return members_; }
  [[nodiscard]] bool stopping() const { return stopping_; }

 private:
  enum class Phase { joining, sealing, running, ended };

  void on_hello(ConnectionId from, Time now, const Hello& hello);
  void on_message(MemberStatus& member, const ControlMessage& message);
  void on_sealed(MemberStatus& member, const Sealed& sealed);
  void on_heartbeat(MemberStatus& member, const Heartbeat& heartbeat);
  void on_eval(const EvalReport& report);
  void on_held(MemberStatus& member, const Held& held);
  void on_done(MemberStatus& member, const Done& done);

  [[nodiscard]] std::string reason_to_refuse(const Hello& hello) const;
  void seal();
  void begin_view();
  [[nodiscard]] std::string disagreement() const;
  void check_chains(const MemberStatus& member);
  void finish();
  /// A member is gone: its place is free again while others are still joining; later the run fails.
  void lose(const MemberStatus& member, const std::string& how);
  void end(Ended::How how, const std::string& reason);
  void send(const MemberStatus& member, ControlMessage message);
  void broadcast(const ControlMessage& message);
  [[nodiscard]] MemberStatus* find(ConnectionId connection);

  CoordinatorOptions options_;
  Time started_;
  Phase phase_ = Phase::joining;
  bool stopping_ = false;
  std::map<std::string, MemberStatus> members_;
  struct Evaluation {
    double sum_nats = 0;
    std::uint64_t tokens = 0;
    std::size_t reports = 0;
  };
  std::map<std::uint64_t, Evaluation> evaluations_;
  struct ChainPoint {
    std::uint64_t prefix;
    std::string by;
  };
  std::map<std::size_t, std::map<Round, ChainPoint>> chains_;  ///< by fragment, the newest rounds reported
  std::vector<CoordinatorAction> actions_;
};

}  // namespace isthmus::outer_sync::protocol
