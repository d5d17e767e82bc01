#pragma once
// A member's identity, its promises to the coordinator, and its view.

#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/protocol/messages/joining.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/state.h"
#include "isthmus/outer_sync/protocol/messages/views.h"
#include "net/link/control_link.h"
#include "net/member/io/crossing.h"
#include "net/member/io/heartbeats.h"
#include "net/member/io/rounds.h"
#include "net/member/io/state_recovery.h"
#include "net/mesh/peer_mesh.h"

namespace isthmus::outer_sync::transport {

/// Owns this replica's identity, the run's token and the view that waits to begin. Answers seals, begins and
/// leaves views, and has the state copied before its first one. The mesh knows the view's peers.
class Membership final : public StateRecovery::Handler {
 public:
  /// All arguments must outlive it. `recovery` stays empty for a reducer, which has no state to copy.
  Membership(RunCodecs& codecs, Rounds& rounds, PeerMesh& mesh, ControlLink& control, Heartbeats& heartbeats,
             std::optional<StateRecovery>& recovery, IoEnd shared, Say say)
      : codecs_(codecs),
        rounds_(rounds),
        mesh_(mesh),
        control_(control),
        heartbeats_(heartbeats),
        recovery_(recovery),
        shared_(shared),
        say_(std::move(say)) {}

  // ---- identity ----

  void introduce(protocol::Hello hello) { hello_ = std::move(hello); }
  /// Later hellos have this calendar.
  void calendar_is(const std::string& text) { hello_.calendar = text; }
  [[nodiscard]] const protocol::MemberInfo& self() const { return hello_.member; }
  [[nodiscard]] bool observes() const { return self().kind == protocol::MemberKind::observer; }
  /// The first message on a new connection to the coordinator. `done`: this replica has reached the last
  /// step.
  [[nodiscard]] protocol::Hello hello(bool done);

  // ---- copying the state ----

  /// Throws Error(network) if this member is a reducer.
  void on_admitted(const protocol::Admitted& admitted);
  void on_steered(const protocol::Settings& settings);
  /// The connection to the coordinator has ended.
  void on_disconnected();

  // ---- views ----

  /// Starts a run with this state, and answers the seal if it has arrived.
  void begin(const protocol::InitialState& state);
  void on_seal(const protocol::Seal& seal);
  /// Throws Error(network) if the view does not fit this replica.
  void on_new_view(protocol::NewView message);
  /// Call after a round that the trainer had taken is applied: a view may have waited for that.
  void begin_waiting_view();
  /// Drops this replica's state and contributions; it returns under a new incarnation.
  void evict(const std::string& reason);

 private:
  // StateRecovery::Handler
  [[nodiscard]] bool stands() const override { return rounds_.stands(); }
  void on_ready(const std::vector<protocol::FragmentState>& states, const protocol::Ledger& ledger) override;
  void on_rounds_gone() override;
  void on_no_donors() override;

  [[nodiscard]] protocol::ReplicaId id() const { return id_of(hello_.member); }
  [[nodiscard]] bool reduces() const { return self().kind == protocol::MemberKind::reducer; }
  void join_mesh(const Digest& token);
  void forget_seal();
  void answer_seal(protocol::ViewNumber view);
  void answer_seal_blankly(protocol::ViewNumber view);
  void begin_reducing(const protocol::NewView& message);
  [[nodiscard]] protocol::Member::Entry enter(IoView& now, const protocol::NewView& message,
                                              protocol::MemberIndex place, bool of_reference);
  void on_view_begun(const protocol::NewView& message, bool of_reference);
  void stop_copying();
  void withdraw();

  RunCodecs& codecs_;
  Rounds& rounds_;
  PeerMesh& mesh_;
  ControlLink& control_;
  Heartbeats& heartbeats_;
  std::optional<StateRecovery>& recovery_;
  const IoEnd shared_;
  Say say_;

  protocol::Hello hello_;
  bool has_entered_ = false;  ///< not for reducers: has been admitted, in a view or evicted
  Digest token_;
  Digest parameters_;                   ///< digest of the global parameters, before the first view
  std::optional<protocol::Seal> seal_;  ///< the newest request, until this replica has a state
  std::optional<protocol::NewView> waiting_view_;
  protocol::ViewNumber blank_seal_ = 0;  ///< reducer: highest view sealed before its first one
  protocol::Settings steered_;           ///< latest settings received while copying the state
};

}  // namespace isthmus::outer_sync::transport
