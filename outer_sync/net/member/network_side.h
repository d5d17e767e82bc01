#pragma once
// The side of a member that faces the network: the io thread and all that lives on it. This is where its
// parts are put together and what one has to say is handed to another; each part's job is its own.

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

/// What a member is told of its run.
struct MemberRules {
  protocol::CodecPlan codecs;
  protocol::ClosingRule closing;
  quant::Lossless lossless = quant::Lossless::none;
  bool moments = false;              ///< of the inner optimizer are taken with the state
  std::uint64_t chunk_elements = 0;  ///< that the layout must have, where it is not known yet
};

/// Owns the sockets, the io thread and the threads of its parts. What is public may be called from any
/// thread: it returns at once, and is done on the io thread, in the order of the calls. What comes of it is
/// in the shared state.
class NetworkSide final : public PeerMesh::Handler,
                          public ControlLink::Handler,
                          public StateRecovery::Handler,
                          public Membership::Handler {
 public:
  /// Binds `network.listen` (Error(config) naming the address when it is in use) and starts the threads.
  /// `layout` is null for one that only reduces. The shared state and the trace must outlive it.
  NetworkSide(const NetworkConfig& network, const FragmentLayout* layout, const MemberRules& rules,
              SharedState& meet, Trace& trace);
  ~NetworkSide() override;
  NetworkSide(const NetworkSide&) = delete;
  NetworkSide& operator=(const NetworkSide&) = delete;

  [[nodiscard]] const std::string& advertised() const { return advertised_; }
  [[nodiscard]] const WireCounters& counters() const { return counters_; }
  /// Of one that has a layout from the start.
  [[nodiscard]] CodecContext& codec_context() { return *codec_context_; }

  /// See MemberNode. Before `say_hello`.
  void gather(std::shared_ptr<RecordQueue> records);

  // ---- the run ----

  /// Begins to dial the coordinator. The address in `hello` is filled in.
  void say_hello(protocol::Hello hello);
  /// Answers the seal that is in the shared state.
  void activate(const std::vector<protocol::FragmentState>& fragments, const Digest& parameters,
                const protocol::Ledger& ledger, const protocol::Settings& settings);
  /// What this member has is not the run's: the shared state says so then.
  void give_up(const std::string& reason);
  /// Up to all rounds that were said to be applied; empty where this member stands nowhere. Waits for the io
  /// thread, and throws why it has failed where it is gone.
  [[nodiscard]] protocol::Ledger ledger();
  void send(protocol::ControlMessage message);
  void report_evaluation(const protocol::EvalReport& report);
  void request_stop(const std::string& reason);
  void request_checkpoint(const std::string& reason);
  void done(const protocol::Done& done);
  void leave(const std::string& reason);

  // ---- rounds ----

  /// `packed` is null where that would not be smaller.
  void contribute(ChunkId chunk, protocol::Round round, protocol::SharedBytes bytes,
                  protocol::SharedBytes packed, std::uint64_t weight, double squares,
                  const SampleSet& samples);
  /// By the trainer.
  void applied(FragmentId fragment, const protocol::FragmentState& state, std::vector<SampleRange> samples);
  /// By one that only reduces. What was taken in another life than the shared state counts no more.
  void followed(FragmentId fragment, const protocol::FragmentState& state, std::vector<SampleRange> samples,
                std::uint64_t life);

  // ---- the state, where it is taken from others ----

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
    throw Error(ErrorKind::network, "it sent a message that is a member's to send");
  }

  /// Open only where there is a port.
  [[nodiscard]] asio::ip::tcp::acceptor bind();
  [[nodiscard]] std::size_t max_bytes_queued(const FragmentLayout& layout) const;
  void run_io();
  [[nodiscard]] asio::awaitable<void> heartbeat_loop();
  [[nodiscard]] asio::awaitable<void> tick_loop();
  void say_what_is_missing();
  [[nodiscard]] protocol::Heartbeat heartbeat();
  void look_at_certificates();
  void stop_taking();
  /// A line on standard error.
  void say(const std::string& text) const;
  [[nodiscard]] Say saying() {
    return [this](const std::string& text) { say(text); };
  }

  const NetworkConfig network_;
  const MemberRules rules_;
  const bool reduces_;  ///< and does nothing else
  SharedState& shared_;
  WireCounters counters_;
  std::unique_ptr<CodecContext> codec_context_;  ///< none before the layout is known
  LinkOptions link_;
  asio::io_context io_;
  std::string advertised_;  ///< HOST:PORT; empty where no port is open
  AwakeClock clock_;
  PeerMesh mesh_;
  ControlLink control_;
  RecordSender records_;
  Rounds rounds_;
  Membership membership_;
  Heartbeats heartbeats_;
  Shutdown shutdown_;
  // Of one that has the state, or will:
  std::optional<StateRecovery> taker_;
  std::optional<StateServer> giver_;
  protocol::Settings steered_;                ///< as one that takes the state has been told them
  std::deque<protocol::EvalReport> reports_;  ///< the newest evaluations

  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread io_thread_;
};

}  // namespace isthmus::outer_sync::transport
