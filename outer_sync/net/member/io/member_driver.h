#pragma once
// A member's io thread with everything that runs on it, and the commands to it. All other code in this folder
// runs on this thread unless it says otherwise.

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
#include "isthmus/outer_sync/net/mailbox/mailbox_place.h"
#include "net/link/control_link.h"
#include "net/member/io/codec_context.h"
#include "net/member/io/crossing.h"
#include "net/member/io/heartbeats.h"
#include "net/member/io/membership.h"
#include "net/member/io/records.h"
#include "net/member/io/rounds.h"
#include "net/member/io/sending_limits.h"
#include "net/member/io/shutdown.h"
#include "net/member/io/state_recovery.h"
#include "net/member/io/state_server.h"
#include "net/mesh/peer_mesh.h"

namespace isthmus::outer_sync::transport {

/// Owns the sockets, the io thread and its parts, and passes the coordinator's messages to the parts. Any
/// thread may give commands (the public functions): they return at once, and the io thread executes them in
/// the order of the calls. Results appear in the crossing. It has many fields because it assembles the parts.
class MemberDriver final : public ControlLink::Handler {
 public:
  /// Binds `network.listen` and starts the threads. Throws Error(config) with the address if it is in use.
  /// `layout` is null for a reducer. The crossing and the trace must outlive it.
  MemberDriver(const NetworkConfig& network, const FragmentLayout* layout, const MemberRules& rules,
               Crossing& crossing, Trace& trace, const std::optional<MailboxPlace>& mailbox = std::nullopt);
  ~MemberDriver() override;
  MemberDriver(const MemberDriver&) = delete;
  MemberDriver& operator=(const MemberDriver&) = delete;

  [[nodiscard]] const std::string& advertised() const { return advertised_; }
  [[nodiscard]] const WireCounters& counters() const { return counters_; }
  /// For members that know the layout from the start.
  [[nodiscard]] CodecContext& codec_context() { return *codecs_; }

  /// See MemberNode. Call before `say_hello`.
  void gather(std::shared_ptr<RecordQueue> records);
  /// See MemberOptions. Call before `say_hello`.
  void give_receipts_to(protocol::ReceiptSink& sink) { rounds_.give_receipts_to(sink); }

  // ---- the run ----

  /// Starts dialling the coordinator. Fills in the address in `hello`.
  void say_hello(protocol::Hello hello);
  /// Answers the seal, once it has arrived, with this state.
  void activate(protocol::InitialState state);
  /// This member's state is not the run's: evicts it, which sets `evicted`.
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
  void exchange(ChunkId chunk, std::uint64_t step, const protocol::SharedBytes& bytes, std::uint64_t weight,
                protocol::SharedBytes packed);
  void end_exchange(FragmentId fragment, std::uint64_t step);
  /// From a reducer, with the `life` in which it took the round: ignored if that has changed.
  void applied(FragmentId fragment, const protocol::FragmentState& state, std::vector<SampleRange> samples,
               std::optional<std::uint64_t> life = std::nullopt);

  // ---- while copying the state from others ----

  void attempt_begun(std::uint64_t attempt);
  void learned(FragmentId fragment, const protocol::FragmentState& state);

 private:
  // ControlLink::Handler
  void on_up() override;
  void on_control(protocol::ControlMessage message) override;
  void on_down(const std::string& why) override;

  void handle(const protocol::Seal& seal) { membership_.on_seal(seal); }
  void handle(protocol::NewView& view) { membership_.on_new_view(std::move(view)); }
  void handle(const protocol::HeartbeatReply& reply);
  void handle(const protocol::Admitted& admitted) { membership_.on_admitted(admitted); }
  void handle(const protocol::Evicted& evicted) { membership_.evict(evicted.reason); }
  void handle(const protocol::Relays& relays) { mesh_.set_relays(relays); }
  void handle(const protocol::Suspended& suspended) { heartbeats_.suspended(suspended.reason); }
  void handle(const protocol::Announce& announce);
  void handle(const protocol::Adjust& adjust);
  void handle(const protocol::Steered& steered) { membership_.on_steered(steered.settings); }
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
  void run_io();
  [[nodiscard]] asio::awaitable<void> heartbeat_loop();
  [[nodiscard]] asio::awaitable<void> tick_loop();
  void say_what_is_missing();
  [[nodiscard]] protocol::Heartbeat heartbeat();
  void look_at_certificates();
  /// Writes a line to standard error and to the records.
  void say(const std::string& text) const;
  [[nodiscard]] Say saying() {
    return [this](const std::string& text) { say(text); };
  }

  const NetworkConfig network_;
  const bool reduces_;  ///< this member is a reducer
  const IoEnd shared_;
  WireCounters counters_;
  RunCodecs codecs_;
  asio::io_context io_;
  LinkOptions link_;
  std::string advertised_;  ///< HOST:PORT; empty if no port is open
  AwakeClock clock_;
  PeerMesh mesh_;
  ControlLink control_;
  RecordSender records_;
  Rounds rounds_;
  Heartbeats heartbeats_;
  SendingLimits limits_;
  Membership membership_;
  Shutdown shutdown_;
  // Not for reducers:
  std::optional<StateRecovery> recovery_;
  std::optional<StateServer> giver_;
  std::deque<protocol::EvalReport> reports_;  ///< the newest evaluations, sent again on a new connection

  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread io_thread_;
};

}  // namespace isthmus::outer_sync::transport
