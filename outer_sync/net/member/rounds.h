#pragma once
// A member's rounds: the protocol's state machine, and what its actions ask for. Everything here runs on the
// io thread, but for the reducing itself, which has a thread of its own.

#include <asio/io_context.hpp>
#include <asio/thread_pool.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "net/link/connection.h"
#include "net/member/codec_context.h"
#include "net/member/say.h"
#include "net/member/shared_state.h"
#include "net/mesh/peer_mesh.h"

namespace isthmus::outer_sync::transport {

/// Owns the protocol's member and the codec thread. Chunks that are to be sent go to the mesh, rounds that
/// are complete to the shared state.
class Rounds {
 public:
  Rounds(asio::io_context& io, PeerMesh& mesh, SharedState& meet, Trace& trace, protocol::ClosingRule closing,
         Say say)
      : io_(io), mesh_(mesh), shared_(meet), trace_(trace), closing_(closing), say_(std::move(say)) {}

  /// Once, before anything else: of one that only reduces as soon as it knows the run's layout.
  void use(CodecContext& codec_context) { codec_context_ = &codec_context; }
  [[nodiscard]] CodecContext& codec_context() const { return *codec_context_; }

  // ---- where this replica stands ----

  /// Stands there from now on, in no view yet.
  void begin(std::vector<protocol::FragmentState> fragments, protocol::Ledger ledger = {},
             protocol::Settings settings = {});
  /// Stands nowhere, and is in no view, any more.
  void end();
  /// What was carried from round to round is of one that is gone.
  void forget_residuals();
  /// Between `begin` and `end` there is a member.
  [[nodiscard]] bool stands() const { return member_.has_value(); }
  [[nodiscard]] protocol::Member& member() { return *member_; }
  [[nodiscard]] const protocol::Member& member() const { return *member_; }

  /// The member has begun a view: from here on its peers are heard.
  void enter_view();
  /// The peers of the view have been named to the mesh: what the member wants of them goes out.
  void go_on();
  [[nodiscard]] bool in_a_view() const { return !ids_.empty(); }
  /// No peer of the view can be reached.
  [[nodiscard]] bool nobody_is_up() const;
  /// Counts the trainers of the view to whom there is a connection.
  void count_live();

  // ---- from the trainer ----

  /// `packed` is null where that would not be smaller.
  void contribute(ChunkId chunk, protocol::Round round, const protocol::SharedBytes& bytes,
                  const protocol::SharedBytes& packed, std::uint64_t weight, double squares,
                  const SampleSet& samples);
  /// Requires `stands()`.
  void applied(FragmentId fragment, const protocol::FragmentState& state, std::vector<SampleRange> samples);

  // ---- from peers ----

  /// As PeerMesh::Handler has them. Whoever is not in the view in force here is not heard.
  [[nodiscard]] std::optional<std::string> on_chunk(protocol::ReplicaId from, Connection::Received chunk);
  void on_ack(protocol::ReplicaId from, protocol::ViewNumber view, const protocol::ChunkKey& key);
  void on_begun(protocol::ReplicaId from, protocol::ViewNumber view);
  void on_peer_up(protocol::ReplicaId peer);
  [[nodiscard]] std::uint64_t order_of_carried(const protocol::ChunkKey& key) const;
  void on_broken_peer(protocol::ReplicaId peer, const std::string& why);

  // ---- time, and others ----

  /// `now` of the clock that leases are given by.
  void tick(protocol::Time now);
  /// The results of a round in chunk order, as far as they are here; empty where there is no member.
  [[nodiscard]] std::vector<protocol::SharedBytes> held(FragmentId fragment, protocol::Round round) const;
  /// Up to the last applied round; of round 0 where there is no member.
  [[nodiscard]] protocol::FragmentLedger ledger(FragmentId fragment) const;

 private:
  /// A chunk that has just been made, and what it was packed to (null where that would not be smaller).
  struct Fresh {
    protocol::SharedBytes bytes, packed;
  };

  [[nodiscard]] std::optional<protocol::MemberIndex> index_of(protocol::ReplicaId peer) const;
  void act(const Fresh& fresh = {});
  [[nodiscard]] std::uint64_t order_of(const protocol::ChunkKey& key);
  void deliver(protocol::Deliver round);
  void say_if_rejected(const protocol::Deliver& round);
  void reduce(const protocol::Reduce& job);

  asio::io_context& io_;
  PeerMesh& mesh_;
  SharedState& shared_;
  Trace& trace_;
  protocol::ClosingRule closing_;
  Say say_;
  CodecContext* codec_context_ = nullptr;
  std::optional<protocol::Member> member_;
  std::vector<protocol::ReplicaId> ids_;  ///< of the members of the view in force here; empty outside of one
  std::map<SharedState::Place, std::uint64_t> orders_;  ///< of rounds, as they have begun here
  std::uint64_t orders_begun_ = 0;
  std::uint64_t rejected_ = 0;       ///< rounds that this replica was left out of for its norm
  asio::thread_pool codec_pool_{1};  ///< last, so that it ends before what it uses
};

}  // namespace isthmus::outer_sync::transport
