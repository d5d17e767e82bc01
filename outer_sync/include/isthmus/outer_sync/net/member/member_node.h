#pragma once
// A member of a run, connected to the network: runs the protocol's state machine. Its io thread owns the
// sockets, timers and protocol state; its codec thread reduces the chunks that it owns. The application calls
// it from one thread, which blocks only in the calls that say so.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/engine/round_exchange.h"
#include "isthmus/outer_sync/net/mailbox/mailbox_place.h"
#include "isthmus/outer_sync/net/member/io/record_queue.h"
#include "isthmus/outer_sync/net/member/io/reports.h"
#include "isthmus/outer_sync/protocol/messages/chunks.h"
#include "isthmus/outer_sync/protocol/messages/ending.h"
#include "isthmus/outer_sync/protocol/messages/joining.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/state.h"
#include "isthmus/outer_sync/protocol/receipts.h"

namespace isthmus::outer_sync {

class OuterLoop;

/// Settings of a node that have a default.
struct MemberOptions {
  quant::Lossless lossless = quant::Lossless::none;
  /// A replica that copies the run's state also copies the inner optimizer's moments; then all members must
  /// share theirs (OuterLoop::share_moments).
  bool moments = false;
  /// The records of this queue, and this node's own log lines, are sent to the coordinator. May be null.
  std::shared_ptr<RecordQueue> records = nullptr;
  /// Gets a receipt for each chunk that this member reduces (protocol/receipts.h). May be empty.
  protocol::ReceiptSink* receipts = nullptr;
  /// With network.mailbox.
  std::optional<MailboxPlace> mailbox = std::nullopt;
  /// The node's blocking calls run it about ten times a second on the caller's thread, for instance to notice
  /// signals. An exception from it ends the blocking call. May be empty.
  std::function<void()> while_waiting = nullptr;
};

/// It has many functions because it is all that trainers, reducers, observers and the outer loop see of the
/// network; each group has its caller.
class MemberNode final : public RoundExchange {
 public:
  /// Binds `network.listen` and starts the threads. Throws Error(config) with the address if it is in use.
  /// The layout and the trace must outlive the node.
  MemberNode(const NetworkConfig& network, const FragmentLayout& layout, protocol::CodecPlan codecs,
             protocol::ClosingRule closing, Trace& trace, const MemberOptions& options = {});
  /// For a reducer, which calls `follow`. It has no parameters and learns the layout from its first view,
  /// which must have this chunk size. The trace must outlive the node.
  MemberNode(const NetworkConfig& network, std::uint64_t chunk_elements, protocol::CodecPlan codecs,
             protocol::ClosingRule closing, Trace& trace, const MemberOptions& options = {});
  ~MemberNode() override;
  MemberNode(const MemberNode&) = delete;
  MemberNode& operator=(const MemberNode&) = delete;

  /// HOST:PORT that peers dial: `network.advertise`, or the bound listen address. Empty if `network.listen`
  /// is `none`.
  [[nodiscard]] const std::string& advertised() const;
  /// The run as it is now: ask once per step and read all from that. Any thread.
  [[nodiscard]] NodeStatus status() const;

  // ---- entering the run ----

  /// Sends the hello to the coordinator, which need not be listening yet, and blocks until the answer
  /// determines how this replica enters the run. An observer blocks until it has donors or the run has ended.
  /// Fills in the address in `hello`. Throws Error(config) if the coordinator refuses.
  [[nodiscard]] Admission join(protocol::Hello hello);
  /// At the start of a run: reports this member's state and blocks until the first view begins. `trained`, on
  /// a resume: the samples trained on that are not in the ledger yet.
  void activate(protocol::InitialState state, SampleSet trained = {});
  /// For a joining member, or after Evicted was thrown: copies the run's state from its members into the
  /// loop, and blocks until a view with this replica has begun. The loop is then at the agreed step.
  void catch_up(OuterLoop& loop);

  // ---- between steps ----

  /// The sequences that this replica trains on next: between one and `most`, consecutive and from one track.
  /// Ranges given out before `catch_up` are void, so do not call this while `catch_up` runs. Any thread.
  [[nodiscard]] SampleRange next_samples(std::uint64_t most);
  /// The run's ledger up to the rounds applied here. Waits for the io thread.
  [[nodiscard]] protocol::Ledger ledger();

  /// Agrees on a line that all need: one member passes it, and it is sent to all. Blocks until it has
  /// arrived, and returns it.
  [[nodiscard]] std::string announced(std::optional<std::string> own = std::nullopt);

  /// Call before each step. Returns false if the members have agreed to stop before it; blocks while they
  /// agree. `end` is the agreed step at which this inner step ends. It may lie before or after `step`; an
  /// inner step that has begun is finished. `reach` is OuterLoop's reach of `end`; without it no setting can
  /// change during the run. Throws Error(network) if the run cannot continue.
  [[nodiscard]] bool may_begin(std::uint64_t step, std::uint64_t end,
                               std::uint64_t reach = protocol::Settings::never);
  /// Call before `may_begin`. Returns true, after a moment, while the run is paused before this step
  /// (`isthmus ctl pause`). Serves requests for the state meanwhile. Throws like `may_begin`.
  [[nodiscard]] bool is_paused(std::uint64_t step);
  /// Call once after each agreed step. Returns true if the coordinator has asked all members for a checkpoint
  /// of it.
  [[nodiscard]] bool checkpoint_due(std::uint64_t step);
  /// Asks the coordinator for a checkpoint by all members soon; `reason` is human-readable. Any thread.
  void request_checkpoint(const std::string& reason);
  /// Reports this replica's complete checkpoints, in ascending order.
  void report_checkpoints(std::vector<protocol::CheckpointId> checkpoints);
  void report(const StepReport& report);
  void report_evaluation(std::uint64_t step, double sum_nats, std::uint64_t tokens);
  /// Asks the coordinator to end the run at one step for all members. Any thread.
  void request_stop(const std::string& reason);

  // ---- instead of training ----

  /// For an observer, instead of `catch_up`: blocks for the next fragment state or round and applies it to
  /// the loop. A round of a fragment later than `until` stays queued for a later call.
  [[nodiscard]] Following follow(OuterLoop& loop, const std::vector<protocol::Round>& until);
  /// Runs a reducer: joins, owns chunks and follows the rounds until the run has ended. Returns the problem
  /// with the run's result or an empty string; nullopt if this member has left the run. Throws Error(config)
  /// if the coordinator refuses, Error(network) if the run cannot continue.
  [[nodiscard]] std::optional<std::string> follow(protocol::Hello hello);

  // ---- the end ----

  /// Blocks until all members are done, then gives observers time to fetch the last rounds. Returns the
  /// problem with the run's result, or an empty string.
  [[nodiscard]] std::string done(std::string summary, const Digest& global_hash);
  /// Reports to the coordinator that this member cannot continue, and why; waits a moment until that is sent.
  /// Any thread.
  void leave(const std::string& reason) noexcept;
  /// Reports the loss of something that this replica needs: all blocking calls of this node, present and
  /// future, throw this error. Any thread.
  void fail(const Error& error);

  // ---- for the outer loop: RoundExchange ----

  void contribute(ChunkId chunk, protocol::Round round, protocol::SharedBytes bytes, std::uint64_t weight,
                  const SampleSet& samples) override;
  [[nodiscard]] Awaited wait(FragmentId fragment, protocol::Round round, bool can_train_on) override;
  void applied(FragmentId fragment, protocol::Round round, const Digest& chain,
               std::vector<SampleRange> samples) override;
  void checked(const protocol::StateDigest& reported) override;
  void serve_state_from(StateSource source) override;
  void serve() override;
  [[nodiscard]] std::uint64_t agreed_step() const override;
  [[nodiscard]] std::shared_ptr<const protocol::Settings> settings() const override;
  [[noreturn]] void give_up(const std::string& reason) override;
  [[nodiscard]] bool begin_exchange(FragmentId fragment, std::uint64_t step) override;
  void exchange(ChunkId chunk, std::uint64_t step, const protocol::SharedBytes& bytes,
                std::uint64_t weight) override;
  void end_exchange(FragmentId fragment, std::uint64_t step) override;
  [[nodiscard]] std::optional<protocol::Exchanged> take_exchanged(FragmentId fragment,
                                                                  std::uint64_t step) override;
  [[nodiscard]] Reducer& reducer() override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isthmus::outer_sync
