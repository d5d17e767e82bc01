#pragma once
// A member's network side: owns the io thread and the parts that run on it, and passes messages between them.

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/outer_sync/config/config.h"
#include "net/link/control_link.h"
#include "net/member/codec_context.h"
#include "net/member/heartbeats.h"
#include "net/member/membership.h"
#include "net/member/record_sender.h"
#include "net/member/rounds.h"
#include "net/member/shared_state.h"
#include "net/member/shutdown.h"
#include "net/member/state_recovery.h"
#include "net/member/state_server.h"
#include "net/mesh/peer_mesh.h"

namespace isthmus::outer_sync::transport {

/// Settings of the run that a member needs.
struct MemberRules {
  protocol::CodecPlan codecs;
  protocol::ClosingRule closing;
  quant::Lossless lossless = quant::Lossless::none;
  bool moments = false;              ///< the state includes the inner optimizer's moments
  std::uint64_t chunk_elements = 0;  ///< required chunk size, while the layout is unknown
};

/// Owns the sockets, the io thread and the threads of its parts. Any thread may call the public functions:
/// they return at once, and the io thread executes them in the order of the calls. Results appear in the
/// shared state.
class NetworkSide final : public PeerMesh::Handler,
                          public ControlLink::Handler,
                          public StateRecovery::Handler,
                          public Membership::Handler {
 public:
  /// Binds `network.listen` and starts the threads. Throws Error(config) with the address if it is in use.
  /// `layout` is null for a reducer. The shared state and the trace must outlive it.
  NetworkSide(const NetworkConfig& network, const FragmentLayout* layout, const MemberRules& rules,
              SharedState& meet, Trace& trace);
  ~NetworkSide() override;
  NetworkSide(const NetworkSide&) = delete;
  NetworkSide& operator=(const NetworkSide&) = delete;

  [[nodiscard]] const std::string& advertised() const { return advertised_; }
  [[nodiscard]] const WireCounters& counters() const { return counters_; }
  /// For members that know the layout from the start.
  [[nodiscard]] CodecContext& codec_context() { return *codec_context_; }

  /// See MemberNode. Call before `say_hello`.
  void gather(std::shared_ptr<RecordQueue> records);

  // ---- the run ----

  /// Starts dialling the coordinator. Fills in the address in `hello`.
  void say_hello(protocol::Hello hello);
  /// Answers the seal in the shared state.
  void activate(const std::vector<protocol::FragmentState>& fragments, const Digest& parameters,
                const protocol::Ledger& ledger, const protocol::Settings& settings);
  /// This member's state is not the run's: evicts it, which sets `evicted` in the shared state.
  void give_up(const std::string& reason);
  /// The ledger up to the rounds reported as applied; empty if this member has no state. Waits for the io
  /// thread; throws its failure if it has ended.
  [[nodiscard]] protocol::Ledger ledger();
  void send(protocol::ControlMessage message);
  void report_evaluation(const protocol::EvalReport& report);
  void request_stop(const std::string& reason);
  void request_checkpoint(const std::string& reason);
  void done(const protocol::Done& done);
  void leave(const std::string& reason);

  // ---- rounds ----

  /// `packed` is null if packing would not make the chunk smaller.
  void contribute(ChunkId chunk, protocol::Round round, protocol::SharedBytes bytes,
                  protocol::SharedBytes packed, std::uint64_t weight, double squares,
                  const SampleSet& samples);
  /// For trainers.
  void applied(FragmentId fragment, const protocol::FragmentState& state, std::vector<SampleRange> samples);
  /// For reducers. Ignored if `life` is not the shared state's any more.
  void followed(FragmentId fragment, const protocol::FragmentState& state, std::vector<SampleRange> samples,
                std::uint64_t life);

  // ---- while copying the state from others ----

  void attempt_begun(std::uint64_t attempt);
  void learned(FragmentId fragment, const protocol::FragmentState& state);

 private:
  // PeerMesh::Handler
  [[nodiscard]] std::optional<std::string> on_chunk(protocol::ReplicaId from,
                                                    Connection::Received chunk) override;
  void on_ack(protocol::ReplicaId from, protocol::ViewNumber view, const protocol::ChunkKey& key) override;
  void on_begun(protocol::ReplicaId from, protocol::ViewNumber view) override;
  void on_peer_up(protocol::ReplicaId peer) override;
  [[nodiscard]] std::uint64_t order_of(const protocol::ChunkKey& key) const override {
    return rounds_.order_of_carried(key);
  }
  void on_peer_down(protocol::ReplicaId peer) override;
  void on_broken_peer(protocol::ReplicaId peer, const std::string& why) override;
  [[nodiscard]] asio::awaitable<void> on_fetcher(protocol::ReplicaId fetcher,
                                                 ConnectionPtr connection) override;
  void on_message(const std::string& text) override { say(text); }

  // ControlLink::Handler
  void on_up() override;
  void on_control(protocol::ControlMessage message) override;
  void on_down(const std::string& why) override;

  // StateRecovery::Handler
  [[nodiscard]] bool stands() const override { return rounds_.stands(); }
  void on_ready(const std::vector<protocol::FragmentState>& states, const protocol::Ledger& ledger) override;
  void on_rounds_gone() override;
  void on_no_donors() override;

  // Membership::Handler
  void on_layout(const protocol::NewView& view) override;
  void on_view_begun() override;
  void on_evicted() override;

  void handle(const protocol::Seal& seal) { membership_.on_seal(seal); }
  void handle(protocol::NewView& view) { membership_.on_new_view(std::move(view)); }
  void handle(const protocol::HeartbeatReply& reply);
  void handle(const protocol::Admitted& admitted);
  void handle(const protocol::Evicted& evicted) { membership_.evict(evicted.reason); }
  void handle(const protocol::Relays& relays) { mesh_.set_relays(relays); }
  void handle(const protocol::Suspended& suspended) { heartbeats_.suspended(suspended.reason); }
  void handle(const protocol::Announce& announce);
  void handle(const protocol::Adjust& adjust);
  void handle(const protocol::Steered& steered);
  void handle(const protocol::Drain& drain);
  void handle(const protocol::CheckpointAt& checkpoint);
  void handle(const protocol::Hold&) { shutdown_.on_hold(); }
  void handle(const protocol::StopAt& stop) { shutdown_.on_stop_at(stop.step); }
  void handle(const protocol::Finished& finished);
  void handle(const protocol::Refused& refused);
  void handle(const protocol::Abort& abort);
  void handle(const protocol::RecordsTaken& taken) { records_.on_taken(taken); }
  template <class Other>
  void handle(const Other&) {
    throw Error(ErrorKind::network, "it sent a message that only members may send");
  }

  /// The acceptor is open only if this member listens on a port.
  [[nodiscard]] asio::ip::tcp::acceptor bind();
  [[nodiscard]] std::size_t max_bytes_queued(const FragmentLayout& layout) const;
  void run_io();
  [[nodiscard]] asio::awaitable<void> heartbeat_loop();
  [[nodiscard]] asio::awaitable<void> tick_loop();
  void say_what_is_missing();
  [[nodiscard]] protocol::Heartbeat heartbeat();
  void look_at_certificates();
  void stop_taking();
  /// Writes a line to standard error and to the records.
  void say(const std::string& text) const;
  [[nodiscard]] Say saying() {
    return [this](const std::string& text) { say(text); };
  }

  const NetworkConfig network_;
  const MemberRules rules_;
  const bool reduces_;  ///< this member is a reducer
  SharedState& shared_;
  WireCounters counters_;
  std::unique_ptr<CodecContext> codec_context_;  ///< null before the layout is known
  LinkOptions link_;
  asio::io_context io_;
  std::string advertised_;  ///< HOST:PORT; empty if no port is open
  AwakeClock clock_;
  PeerMesh mesh_;
  ControlLink control_;
  RecordSender records_;
  Rounds rounds_;
  Membership membership_;
  Heartbeats heartbeats_;
  Shutdown shutdown_;
  // Not for reducers:
  std::optional<StateRecovery> taker_;
  std::optional<StateServer> giver_;
  protocol::Settings steered_;                ///< latest settings received while copying the state
  std::deque<protocol::EvalReport> reports_;  ///< the newest evaluations, sent again on a new connection

  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread io_thread_;
};

}  // namespace isthmus::outer_sync::transport
