#pragma once
// A member's rounds: drives the protocol's state machine, feeds it the peers' messages and carries out its
// actions. Runs on the io thread, except the reduction, which runs on the codec thread.

#include <asio/io_context.hpp>
#include <asio/thread_pool.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/protocol/exchanges.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/receipts.h"
#include "net/link/connection.h"
#include "net/member/io/codec_context.h"
#include "net/member/io/crossing.h"
#include "net/mesh/peer_mesh.h"

namespace isthmus::outer_sync::transport {

class StateServer;

/// Owns the protocol's member and the codec thread. Passes chunks to be sent to the mesh, and complete rounds
/// to the trainer.
class Rounds final : public PeerMesh::Handler {
 public:
  /// All arguments must outlive it.
  Rounds(asio::io_context& io, PeerMesh& mesh, RunCodecs& codecs, IoEnd shared, Trace& trace, Say say)
      : io_(io), mesh_(mesh), codecs_(codecs), shared_(shared), trace_(trace), say_(std::move(say)) {}

  /// Call once if this member has a state that others may fetch.
  void give_state_with(StateServer& giver) { giver_ = &giver; }
  /// Makes receipts for what this member receives as an owner. Call before the first round.
  void give_receipts_to(protocol::ReceiptSink& sink) { receipts_ = &sink; }

  // ---- this replica's state ----

  /// This replica now has this state, and is in no view yet.
  void begin(const protocol::InitialState& state);
  /// This replica has no state and is in no view any more.
  void end();
  /// Drops the error feedback carried from round to round: it belonged to an evicted incarnation.
  void forget_residuals();
  /// Whether this replica has a state: between `begin` and `end`.
  [[nodiscard]] bool stands() const { return member_.has_value(); }
  [[nodiscard]] protocol::Member& member() { return *member_; }
  [[nodiscard]] const protocol::Member& member() const { return *member_; }

  /// The member has begun a view: messages from its peers are accepted from now on.
  void enter_view();
  /// The mesh knows the peers of the view: sends what the member has for them.
  void go_on();
  [[nodiscard]] bool in_a_view() const { return !ids_.empty(); }
  /// Whether no peer of the view can be reached.
  [[nodiscard]] bool no_peer_is_up() const;

  // ---- from the trainer ----

  /// `packed` is null if packing would not make the chunk smaller.
  void contribute(ChunkId chunk, protocol::Round round, const protocol::SharedBytes& bytes,
                  const protocol::SharedBytes& packed, std::uint64_t weight, double squares,
                  const SampleSet& samples);
  void exchange(ChunkId chunk, std::uint64_t step, const protocol::SharedBytes& bytes, std::uint64_t weight,
                const protocol::SharedBytes& packed);
  void end_exchange(FragmentId fragment, std::uint64_t step);
  /// Requires `stands()`.
  void applied(FragmentId fragment, const protocol::FragmentState& state, std::vector<SampleRange> samples);

  // ---- time, and queries ----

  /// `now`: lease_time().
  void tick(protocol::Time now);
  /// The results of a round in chunk order, null where missing; empty if there is no member.
  [[nodiscard]] std::vector<protocol::SharedBytes> held(FragmentId fragment, protocol::Round round) const;
  /// The ledger up to the last applied round; that of round 0 if there is no member.
  [[nodiscard]] protocol::FragmentLedger ledger(FragmentId fragment) const;

 private:
  // PeerMesh::Handler. Messages from peers outside the current view are ignored.
  [[nodiscard]] std::optional<std::string> on_chunk(protocol::ReplicaId from,
                                                    Connection::Received chunk) override;
  void on_ack(protocol::ReplicaId from, protocol::ViewNumber view, const protocol::ChunkKey& key) override;
  void on_begun(protocol::ReplicaId from, protocol::ViewNumber view) override;
  void on_peer_up(protocol::ReplicaId peer) override;
  void on_peer_down(protocol::ReplicaId peer) override;
  [[nodiscard]] std::uint64_t order_of(const protocol::ChunkKey& key) const override;
  void on_broken_peer(protocol::ReplicaId peer, const std::string& why) override;
  void on_bridge(bool begins) override;
  [[nodiscard]] asio::awaitable<void> on_fetcher(protocol::ReplicaId fetcher,
                                                 ConnectionPtr connection) override;
  void on_message(const std::string& text) override { say_(text); }

  [[nodiscard]] std::optional<protocol::MemberIndex> index_of(protocol::ReplicaId peer) const;
  void count_live();
  void act();
  void carry_out(protocol::SendChunk& action);
  void carry_out(const protocol::SendAck& action);
  void carry_out(const protocol::SendBegun& action);
  void carry_out(protocol::Reduce& action);
  void carry_out(const protocol::ForgetResidual& action);
  void carry_out(protocol::Deliver& action);
  void carry_out(protocol::Exchanged& action);
  void carry_out(const protocol::DropUnsent& action);
  [[nodiscard]] std::uint64_t order_of_own(const protocol::ChunkKey& key);
  void say_if_rejected(const protocol::Deliver& round);
  void end_receipts();
  void count_owned();
  [[nodiscard]] protocol::Receipt begun_receipt(const protocol::Reduce& job) const;
  void reduce(const protocol::Reduce& job, protocol::Receipt receipt);
  void give_receipt(const protocol::Reduce& job, protocol::Receipt receipt, const Bytes& result,
                    const std::vector<double>& squares) const;

  asio::io_context& io_;
  PeerMesh& mesh_;
  RunCodecs& codecs_;
  const IoEnd shared_;
  Trace& trace_;
  Say say_;
  StateServer* giver_ = nullptr;
  protocol::ReceiptSink* receipts_ = nullptr;  ///< null: no receipts are made
  std::vector<std::uint32_t> owned_;  ///< chunks that this member owns in the view, by fragment; for receipts
  std::optional<protocol::Member> member_;
  std::optional<protocol::Exchanges> exchanges_;  ///< exists while `member_` does
  std::vector<protocol::ReplicaId> ids_;          ///< members of the current view; empty outside a view
  std::map<Place, std::uint64_t> orders_;         ///< send order of rounds, by when they began here
  std::uint64_t orders_begun_ = 0;
  std::uint64_t rejected_ = 0;  ///< rounds in which this replica's contribution was rejected for its norm
  asio::thread_pool codec_pool_{1};  ///< last, so that it ends before the members that it uses
};

}  // namespace isthmus::outer_sync::transport
