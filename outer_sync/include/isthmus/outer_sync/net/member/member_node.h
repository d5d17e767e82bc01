#pragma once
// A member on the network: the protocol's state machine under Asio. One io thread owns sockets, timers and
// protocol state; one codec thread reduces the chunks owned here; the caller's thread trains and blocks only
// in the calls that say so.

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
#include "isthmus/outer_sync/net/member/record_queue.h"
#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync {

struct StepReport {
  std::uint64_t step = 0;
  double loss = 0;  ///< nats per token
  double tokens_per_second = 0;
  double utilization = 0;             ///< 0..1
  std::uint64_t other_bytes = 0;      ///< sent by means other than this node (the data-parallel baseline)
  double inner_steps_per_second = 0;  ///< without what was waited for
  std::uint64_t disk_free = 0;        ///< bytes, where the run folder is; 0: not known
  double outer_gain = 0, outer_correlation = 0;  ///< as in the heartbeat
};

/// How a replica comes into a run.
struct Admission {
  enum class How {
    begins,   ///< with the others, from the first step
    resumes,  ///< with the others, from the checkpoint of `step`
    joins     ///< the run has begun: its state comes from the members
  } how = How::begins;
  std::uint64_t step = 0;
};

/// Who takes part, as it is seen from here.
struct Participation {
  std::size_t live = 0;           ///< trainers of the view to whom there is a connection, and this replica
  std::size_t participating = 0;  ///< trainers of the view; 0 while rounds do not commit
  std::size_t contributed = 0;    ///< trainers that are in the round applied last
};

/// A replica's place among those that train.
struct Rank {
  std::size_t index = 0, of = 0;
};

class OuterLoop;

class MemberNode final : public RoundExchange {
 public:
  /// Binds `network.listen` (Error(config) naming the address when it is in use) and starts the threads.
  /// The layout and the trace must outlive the node. With `moments` a replica that takes the state of the run
  /// from its members takes the inner optimizer's moments too; all members must share theirs
  /// (OuterLoop::share_moments).
  MemberNode(const NetworkConfig& network, const FragmentLayout& layout, protocol::CodecPlan codecs,
             protocol::ClosingRule closing, Trace& trace, quant::Lossless lossless = quant::Lossless::none,
             bool moments = false);
  /// Of one that only reduces (`follow`): it has no parameters, and learns the layout with its first view,
  /// whose chunks must have so many elements. The trace must outlive the node.
  MemberNode(const NetworkConfig& network, std::uint64_t chunk_elements, protocol::CodecPlan codecs,
             protocol::ClosingRule closing, Trace& trace, quant::Lossless lossless = quant::Lossless::none);
  ~MemberNode() override;
  MemberNode(const MemberNode&) = delete;
  MemberNode& operator=(const MemberNode&) = delete;

  /// What is put into the queue goes to the coordinator, and what this node itself says with it. To be called
  /// once, before `join` or `follow`.
  void gather(std::shared_ptr<RecordQueue> records);

  /// Called some ten times a second, on the caller's thread, while a call of this node waits for others; what
  /// it throws ends that call. For those who must hear of signals there. To be set before `join`.
  void look_up(std::function<void()> while_waiting);

  /// HOST:PORT that peers dial: `network.advertise`, or the bound listen address; empty with `network.listen`
  /// none.
  [[nodiscard]] std::string advertised() const;

  /// Says hello to the coordinator (whose port may not be open yet) and blocks until it is known how this
  /// replica comes in (an observer: until it has donors, or the run is over). The address in `hello` is
  /// filled in. Throws Error(config) when refused.
  [[nodiscard]] Admission join(protocol::Hello hello);
  /// At the start of a run: reports where this member stands and blocks until the first view begins. Of one
  /// that is resumed: the ledger up to there, what it was trained on that is not done, and what was set.
  void activate(const std::vector<protocol::FragmentState>& fragments, const Digest& parameters,
                const protocol::Ledger& ledger = {}, SampleSet trained = {},
                const protocol::Settings& settings = {});
  /// For one who joins, or was evicted (`Evicted` was thrown): takes the state of the run from its
  /// members into the loop, and blocks until a view with this replica has begun. The loop stands at the
  /// agreed step then.
  void catch_up(OuterLoop& loop);
  /// The sequences that this replica is to train on next: one at least, and at most `most`, of one track and
  /// in a row. What was given before `catch_up` is void, so nobody may ask while it runs. Any thread.
  [[nodiscard]] SampleRange next_samples(std::uint64_t most);
  /// Of the run, up to the rounds that are applied here. Waits for the io thread.
  [[nodiscard]] protocol::Ledger ledger();

  // ---- an observer's ----

  /// In place of `catch_up`: takes what comes next into the loop, a fragment's state or a round; of a
  /// fragment's rounds none after `until`, which stay here for later. Blocks until there is something. False
  /// once the run has ended and nothing more comes that may be taken.
  [[nodiscard]] bool follow(OuterLoop& loop, const std::vector<protocol::Round>& until);
  /// All fragments are in the loop.
  [[nodiscard]] bool has_state() const;
  /// Nothing waits to be taken, and every fragment is within one round of the members'.
  [[nodiscard]] bool is_current() const;
  /// What the run has ended with; nothing before it has.
  [[nodiscard]] std::optional<protocol::Finished> finished() const;

  /// The view in force here, and this member's position in it. They change when others come and go.
  [[nodiscard]] protocol::View view() const;
  [[nodiscard]] protocol::MemberIndex self() const;
  [[nodiscard]] Rank rank() const;
  [[nodiscard]] Participation participation() const;

  /// Sends a line to all members, this one included; `announced` blocks until one is there.
  void announce(std::string text);
  [[nodiscard]] std::string announced();

  /// To be asked before each step: false when all members have agreed to stop before it. Blocks while they
  /// agree. An inner step may end at an agreed one before or after `step`, which `end` is then: what was
  /// begun is finished. `reach` is OuterLoop's of `end`; without it nothing can be set in mid-run. Throws
  /// Error(network) when the run cannot go on.
  [[nodiscard]] bool may_begin(std::uint64_t step, std::uint64_t end,
                               std::uint64_t reach = protocol::Settings::never);
  [[nodiscard]] bool may_begin(std::uint64_t step) { return may_begin(step, step); }
  /// To be asked before that: true while all wait before this step (`isthmus ctl pause`), after a moment. The
  /// state is served meanwhile. Throws as above.
  [[nodiscard]] bool is_paused(std::uint64_t step);
  /// Why this replica is to write a checkpoint and leave, once it is.
  [[nodiscard]] std::optional<std::string> drains() const;
  /// The step that all have agreed to stop at, once they have.
  [[nodiscard]] std::optional<std::uint64_t> stops_at() const;
  /// Inner steps per second of the run, the median of its members; 0 while it is not known.
  [[nodiscard]] double reference_speed() const;
  /// To be asked once after each agreed step: whether all write a checkpoint of it, as the coordinator has
  /// said.
  [[nodiscard]] bool checkpoint_due(std::uint64_t step);
  /// Asks the coordinator to let all write one soon; `reason` is for people. Safe from any thread.
  void request_checkpoint(const std::string& reason);
  /// Whether there is a connection to the coordinator.
  [[nodiscard]] bool reaches_coordinator() const;
  /// The complete checkpoints that this replica has, ascending.
  void report_checkpoints(std::vector<protocol::CheckpointId> checkpoints);
  /// The newest step of which all trainers of the view have said that; 0 while there is none.
  [[nodiscard]] std::uint64_t common_checkpoint() const;
  void report(const StepReport& report);
  void report_evaluation(std::uint64_t step, double sum_nats, std::uint64_t tokens);
  /// Asks the coordinator to end the run at a step that all share. Safe from any thread.
  void request_stop(const std::string& reason);
  /// True once the members have agreed to stop early.
  [[nodiscard]] bool stopped_early() const;

  /// Blocks until all members are done; returns what is wrong with the run's result, empty if nothing is.
  /// Gives those who follow the run time to take its last rounds.
  [[nodiscard]] std::string done(std::string summary, const Digest& global_hash);
  /// All that one that only reduces does: joins, owns chunks and follows the rounds until the run has ended;
  /// returns what is wrong with its result, empty if nothing is, or nothing where this member has left the
  /// run meanwhile. Throws Error(config) when refused and Error(network) when the run cannot go on.
  [[nodiscard]] std::optional<std::string> follow(protocol::Hello hello);
  /// Tells the coordinator that this member cannot go on, and why; waits a moment for it to leave. Safe from
  /// any thread.
  void leave(const std::string& reason) noexcept;
  /// Something that this replica cannot do without is lost: whoever waits in a call of this node, or calls
  /// one that may wait, gets this error. Safe from any thread.
  void fail(const Error& error);

  void contribute(ChunkId chunk, protocol::Round round, protocol::SharedBytes bytes, std::uint64_t weight,
                  const SampleSet& samples) override;
  [[nodiscard]] Awaited wait(FragmentId fragment, protocol::Round round, bool can_train_on) override;
  void applied(FragmentId fragment, protocol::Round round, const Digest& chain,
               std::vector<SampleRange> samples) override;
  void audited(const protocol::Audit& audit) override;
  void serve_state_from(StateSource source) override;
  void serve() override;
  [[nodiscard]] std::uint64_t agreed_step() const override;
  [[nodiscard]] std::shared_ptr<const protocol::Settings> settings() const override;
  [[noreturn]] void give_up(const std::string& reason) override;
  [[nodiscard]] Reducer& reducer() override;

  struct Wire {
    std::uint64_t payload = 0;  ///< bytes of codec data sent, as packed as they went
    std::uint64_t total = 0;    ///< all bytes sent: data, headers, control
  };
  [[nodiscard]] Wire wire() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isthmus::outer_sync
