#pragma once
// What a replica is to its run: who it is, what it has promised the coordinator, and the view that it is in.
// Everything here runs on the io thread.

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

/// Owns this replica's identity, the run's token and the view that waits to begin. Answers seals, begins
/// views and leaves them; the mesh has the peers of the view.
class Membership {
 public:
  /// Called from within the calls below.
  class Handler {
   public:
    virtual ~Handler() = default;
    /// Of one that only reduces: before the first view of each of its incarnations.
    /// Gives the rounds their codec_context. An Error that it throws ends the connection to the coordinator.
    virtual void on_layout(const protocol::NewView& view) = 0;
    /// A view has begun: all that was needed to come into one is over.
    virtual void on_view_begun() = 0;
    /// This replica is in no view any more, and what it has is not the run's.
    virtual void on_evicted() = 0;
  };

  /// All must outlive it.
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
  /// The first thing to be said on a new connection to the coordinator. `done`: this replica has reached the
  /// last step.
  [[nodiscard]] protocol::Hello hello(bool done);
  /// Shows the members that token from now on.
  void join_mesh(const Digest& token);

  // ---- views ----

  /// Stands there at the start of a run; answers the seal that came before.
  void begin(const std::vector<protocol::FragmentState>& fragments, const Digest& parameters,
             const protocol::Ledger& ledger, const protocol::Settings& settings);
  void on_seal(const protocol::Seal& seal);
  /// Throws Error(network) for a view that does not fit this replica.
  void on_new_view(protocol::NewView message);
  /// To be called when a round that was taken has been applied: a view may have waited for that.
  void begin_waiting_view();
  /// Stands nowhere any more, and waits for no view.
  void withdraw();
  /// What this replica has contributed is of one that is gone; so it comes back under another incarnation.
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
  Digest parameters_;  ///< global ones, before the first view
  std::optional<protocol::NewView> waiting_view_;
  protocol::ViewNumber blank_seal_ = 0;  ///< of one that only reduces: highest sealed before its first view
};

}  // namespace isthmus::outer_sync::transport
