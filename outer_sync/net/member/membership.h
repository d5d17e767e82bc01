#pragma once
// A member's identity, its promises to the coordinator, and its view. All functions run on the io thread.

#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "net/link/control_link.h"
#include "net/member/rounds.h"
#include "net/member/say.h"
#include "net/member/shared_state.h"
#include "net/mesh/peer_mesh.h"

namespace isthmus::outer_sync::transport {

/// Owns this replica's identity, the run's token and the view that waits to begin. Answers seals, begins and
/// leaves views. The mesh knows the view's peers.
class Membership {
 public:
  /// Called from within the functions below.
  class Handler {
   public:
    virtual ~Handler() = default;
    /// For a reducer, before the first view of each incarnation: sets the rounds' codec context. If it throws
    /// an Error, the connection to the coordinator ends.
    virtual void on_layout(const protocol::NewView& view) = 0;
    /// A view has begun: copying the state is over.
    virtual void on_view_begun() = 0;
    /// This replica has left its view, and its state is not the run's.
    virtual void on_evicted() = 0;
  };

  /// All arguments must outlive it.
  Membership(Rounds& rounds, PeerMesh& mesh, ControlLink& control, SharedState& meet, Say say,
             Handler& handler)
      : rounds_(rounds),
        mesh_(mesh),
        control_(control),
        shared_(meet),
        say_(std::move(say)),
        handler_(handler) {}

  // ---- identity ----

  void introduce(protocol::Hello hello) { hello_ = std::move(hello); }
  [[nodiscard]] const protocol::MemberInfo& self() const { return hello_.member; }
  [[nodiscard]] protocol::ReplicaId id() const { return id_of(hello_.member); }
  [[nodiscard]] bool reduces() const { return self().kind == protocol::MemberKind::reducer; }
  [[nodiscard]] bool observes() const { return self().kind == protocol::MemberKind::observer; }
  /// The first message on a new connection to the coordinator. `done`: this replica has reached the last
  /// step.
  [[nodiscard]] protocol::Hello hello(bool done);
  /// Uses this run's token for connections to members from now on.
  void join_mesh(const Digest& token);

  // ---- views ----

  /// Starts a run with this state, and answers the seal if it has arrived.
  void begin(const std::vector<protocol::FragmentState>& fragments, const Digest& parameters,
             const protocol::Ledger& ledger, const protocol::Settings& settings);
  void on_seal(const protocol::Seal& seal);
  /// Throws Error(network) if the view does not fit this replica.
  void on_new_view(protocol::NewView message);
  /// Call after a round that the trainer had taken is applied: a view may have waited for that.
  void begin_waiting_view();
  /// Drops this replica's state and any view that waits to begin.
  void withdraw();
  /// Drops this replica's state and contributions; it returns under a new incarnation.
  void evict(const std::string& reason);

 private:
  void forget_seal();
  void answer_seal(protocol::ViewNumber view);
  void answer_seal_blankly(protocol::ViewNumber view);
  void begin_reducing(const protocol::NewView& message);
  void on_view_begun(const protocol::NewView& message, bool of_reference);
  [[nodiscard]] bool is_fresh();

  Rounds& rounds_;
  PeerMesh& mesh_;
  ControlLink& control_;
  SharedState& shared_;
  Say say_;
  Handler& handler_;

  protocol::Hello hello_;
  Digest token_;
  Digest parameters_;  ///< digest of the global parameters, before the first view
  std::optional<protocol::NewView> waiting_view_;
  protocol::ViewNumber blank_seal_ = 0;  ///< reducer: highest view sealed before its first one
};

}  // namespace isthmus::outer_sync::transport
