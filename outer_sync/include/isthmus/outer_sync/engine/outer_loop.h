#pragma once
// Streaming DiLoCo's outer loop (arXiv 2501.18512, Algorithm 2) over one flat parameter buffer.
//
//   OuterLoop loop(config, layout, local_parameters, exchange, trace);
//   each step:  if (loop.synchronous()) loop.average_gradients(gradients, tokens);
//               ... inner optimizer ...
//               loop.after_step(tokens);
//   at the end: loop.finish();
//
// The global parameters are a function of their initial values and the rounds' result bytes alone: every
// member applies the same decoded bytes with the same arithmetic, the owner of a chunk included.
//
// `step()` is the agreed step: a round is sent and applied at the same one by all. Where a result is due and
// rounds do not commit at present, the clock stands still and inner steps go on (`frozen()`).
//
// With `outer.pace: time` that clock is not the inner steps': one of them may complete several agreed steps,
// or none (methods/pace.h).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "isthmus/base/hash.h"
#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/config/settings_timeline.h"
#include "isthmus/outer_sync/core/schedule.h"
#include "isthmus/outer_sync/engine/inner_moments.h"
#include "isthmus/outer_sync/engine/local_parameters.h"
#include "isthmus/outer_sync/engine/outer_state.h"
#include "isthmus/outer_sync/engine/round_exchange.h"
#include "isthmus/outer_sync/engine/step_figures.h"
#include "isthmus/outer_sync/log/round_log.h"
#include "isthmus/outer_sync/methods/pace.h"

namespace isthmus::outer_sync {

/// The outer loop's part of a checkpoint.
struct SavedOuterLoop {
  Bytes agreed;  ///< step, rounds, global parameters and momentum: the same bytes on all replicas
  Bytes own;     ///< this replica's: residuals, rounds in flight, tokens
  friend bool operator==(const SavedOuterLoop&, const SavedOuterLoop&) = default;
};

class OuterLoop {
 public:
  /// The references must outlive the loop. `config` must be resolved. `noise_seed`, for stochastic rounding,
  /// differs from replica to replica.
  OuterLoop(const OuterConfig& config, const FragmentLayout& layout, std::unique_ptr<OuterState> state,
            RoundExchange& exchange, Trace& trace, std::uint64_t noise_seed = 0);
  /// With a HostOuterState: global parameters start as the local ones.
  OuterLoop(const OuterConfig& config, const FragmentLayout& layout, LocalParameters& local,
            RoundExchange& exchange, Trace& trace, std::uint64_t noise_seed = 0);
  ~OuterLoop();
  OuterLoop(const OuterLoop&) = delete;
  OuterLoop& operator=(const OuterLoop&) = delete;

  /// The step that comes is one of the synchronous warm-up: `average_gradients` must be called before its
  /// inner step.
  [[nodiscard]] bool synchronous() const { return step_ < schedule_.warmup_steps(); }
  /// Replaces this replica's gradients (flat, whole buffer), of `tokens` tokens in these sequences, by the
  /// mean over replicas as all of them decode it. Throws Error(divergence) when a gradient is not finite.
  void average_gradients(std::span<float> gradients, std::uint64_t tokens,
                         std::span<const SampleRange> samples = {});

  /// Called with every outer gradient before it is encoded: global minus local parameters of one fragment,
  /// without what error feedback adds. For those who want to look at them; null for nobody.
  using GradientObserver = std::function<void(FragmentId, std::uint64_t step, std::span<const float> global,
                                              std::span<const float> local)>;
  void observe_gradients(GradientObserver observer) { gradient_observer_ = std::move(observer); }

  /// Keeps the rounds that are applied from now on (log/round_log.h).
  struct LogPlan {
    std::filesystem::path folder;
    log::LogHeader header;
    std::uint64_t budget = 0;  ///< bytes
  };
  void keep_log(LogPlan plan) { log_plan_ = std::move(plan); }

  /// After each inner step, of `tokens` tokens in these sequences: a contribution's weight is what its
  /// fragment was trained on since it was last sent. (In the warm-up both have come with the gradients.)
  /// Returns at once unless a result is due that has not come. When rounds do not commit at present, or
  /// while a view forms (for H steps in an interval at most), the clock freezes at the step whose result is
  /// missing, until it is here. Of several agreed steps that the inner step completes it makes the first.
  void after_step(std::uint64_t tokens, std::span<const SampleRange> samples = {});
  /// Makes the next one that is completed already; false if there is none, or the clock is frozen. To be
  /// called until then, with pace time only: otherwise there never is one.
  [[nodiscard]] bool next_step();
  /// To be asked before each inner step. False when rounds have not committed for outer.max_local_rounds * H
  /// local steps: the replica keeps its state and waits, since it may be the only one who has it. Takes a
  /// moment then, in which it asks for what is due.
  [[nodiscard]] bool may_train();
  /// Where the clock stands at most when the next inner step is done.
  [[nodiscard]] std::uint64_t step_after_next();
  /// The clock goes no further than this.
  void end_at(std::uint64_t step) { limit_ = step; }
  /// For pace time: inner steps per second of this replica, without what it waits for, and of the run. Takes
  /// effect where a sync interval begins.
  void set_speeds(double own, double reference) {
    speed_ = own;
    reference_speed_ = reference;
  }
  /// The clock goes no further than this while rounds that are sent after `step` come to nothing.
  [[nodiscard]] std::uint64_t reach(std::uint64_t step) const {
    // With a quorum results may be here of rounds that this replica has not sent.
    return schedule_.reach(step, config_.quorum > 0 ? protocol::Member::window : 0);
  }
  [[nodiscard]] const Schedule& schedule() const { return schedule_; }
  /// What has been set in mid-run, as far as it is known here.
  [[nodiscard]] const protocol::Settings& settings() const { return settings_; }
  /// Of one that follows the rounds of others and is in no view: what these are made under. Throws
  /// Error(config) for values that cannot be, and Evicted where it has followed rounds that were not.
  void adopt(const protocol::Settings& settings);
  /// Of this replica in this sync interval: H, or H_m with pace time.
  [[nodiscard]] std::uint64_t inner_steps() const;
  /// Rounds do not commit, so the agreed step stands still: the last step was a local one.
  [[nodiscard]] bool frozen() const { return frozen_ && !commits_; }
  /// Applies what is due at the agreed step and has not come because the next view formed, so that this step
  /// is to this replica what it is to the others: to be called before its state is looked at. False where
  /// rounds do not commit.
  bool complete_step();
  /// Nothing of this replica's is under way.
  [[nodiscard]] bool quiet() const { return in_flight_.empty(); }
  /// After the last step: applies what is in flight and, with `outer.final_sync`, one more round of every
  /// fragment. Waits for as long as it takes.
  void finish();

  // ---- members that come and go; after the warm-up, whose state is the inner optimizer's too ----

  /// The moments of this replica's inner optimizer, which must outlive the loop: newcomers may take them, and
  /// this replica takes those that come with a state.
  void share_moments(InnerMoments& moments) { moments_ = &moments; }
  /// A fragment's state as it is now; with the moments only if they are shared.
  [[nodiscard]] FragmentSnapshot snapshot(FragmentId fragment, bool with_moments = false);
  /// Takes a fragment's state over from somebody else, moments included where there are any. Throws
  /// Error(network) for one that is not of this layout.
  void install(const FragmentSnapshot& snapshot);
  /// The fragment's next round, into the global parameters only. Throws Error(network) for results that are
  /// not of its chunks and Error(divergence) for such that do not decode.
  void follow(FragmentId fragment, std::span<const protocol::SharedBytes> results);
  /// Begins to train where others are: local parameters become the global ones, residuals are forgotten, and
  /// the clock stands at `step`. To rounds that were sent by then, and are not in the global parameters yet,
  /// this replica contributes nothing, with weight 0. Throws Error(network) when step and rounds cannot be of
  /// one run.
  void begin_at(std::uint64_t step);
  /// To be called before the state is taken from others. Waits.
  void finish_hand_overs();

  [[nodiscard]] std::uint64_t step() const { return step_; }
  /// What this replica was trained on that is not in a round of every fragment that is applied here, with
  /// some that is.
  [[nodiscard]] SampleSet pending_samples() const;
  /// Flat, whole buffer; valid until the next call that changes the loop.
  [[nodiscard]] std::span<const float> global_parameters();
  [[nodiscard]] Digest global_hash();
  [[nodiscard]] const std::vector<protocol::FragmentState>& fragments() const { return fragments_; }

  /// By fragment; empty where this process has applied no audited round yet.
  [[nodiscard]] const std::vector<FragmentFigures>& figures() const { return figures_; }

  struct Stats {
    std::uint64_t rounds = 0;             ///< applied, all fragments
    std::uint64_t warmup_rounds = 0;      ///< of these, averaged gradients
    std::uint64_t left_out = 0;           ///< rounds that some of this replica's chunks are not in
    std::uint64_t rejected = 0;           ///< rounds that some were left out of for their norm, for good
    std::uint64_t uncommitted_steps = 0;  ///< made while the agreed step stood still
    double stall_seconds = 0;             ///< steps waited for a late result
    double warmup_wait_seconds = 0;       ///< synchronous steps waited for the mean gradient
    double finish_seconds = 0;            ///< `finish` waited for the last rounds
    std::uint64_t measured = 0;           ///< outer steps with momentum that have figures
    double gains = 0, correlations = 0;   ///< sums over these
  };
  [[nodiscard]] const Stats& stats() const { return stats_; }

  /// Waits until the results of all rounds in flight are here, for `save`. False when rounds do not commit at
  /// present.
  [[nodiscard]] bool await_results();
  /// Everything that is not in the local parameters, written over `memory`. The results of rounds in flight
  /// are saved, not applied, so that nothing has to be sent again after a restart; where they are not here
  /// yet it waits for them. Nothing when rounds do not commit at present.
  [[nodiscard]] std::optional<SavedOuterLoop> save(SavedOuterLoop memory = {});
  /// `settings` were in force. Throws Error(data) when the bytes are not such a state of this layout.
  void restore(std::span<const std::byte> agreed, std::span<const std::byte> own,
               const protocol::Settings& settings = {});
  void restore(const SavedOuterLoop& saved, const protocol::Settings& settings = {}) {
    restore(saved.agreed, saved.own, settings);
  }

 private:
  struct InFlight {
    FragmentId fragment;
    protocol::Round round;
    Trace::Clock::time_point sent;
    /// What this replica has handed in, in chunk order, until it is known to be in the result (with eager
    /// updates and the carry merge until it is applied).
    std::vector<protocol::SharedBytes> own = {};
    std::optional<RoundResult> result = {};
    /// Its values are what this replica is ahead by already (eager updates).
    bool ahead = false;
    bool is_last = false;               ///< of the final sync
    std::uint64_t weight = 0;           ///< tokens behind it; 0 in the warm-up, where no count is kept
    SampleSet samples = {};             ///< and sequences
    std::optional<double> spread = {};  ///< before it was encoded, if its round is audited
    HandOver leaving = {};              ///< last: until it is over, another thread writes `own`
  };
  enum class Waiting { stall, warmup, finish, save, at_limit };

  void take_settings();
  void change_to(const protocol::Settings& settings, std::uint64_t past);
  void plan(const protocol::Settings& settings);
  [[nodiscard]] methods::OuterRule rule_of(FragmentId p, protocol::Round round) const;
  [[nodiscard]] float carried_into(FragmentId p, protocol::Round round) const;
  InFlight& send(FragmentId p, protocol::Round round);
  [[nodiscard]] bool apply(FragmentId p, Waiting why);
  [[nodiscard]] bool keep_up(Waiting why);
  void send_what_is_due(FragmentId p);
  [[nodiscard]] bool is_due(FragmentId p) const;
  [[nodiscard]] std::uint64_t flying(FragmentId p) const;
  /// Rounds of one fragment.
  [[nodiscard]] std::uint64_t max_in_flight() const { return whole_round_ ? 2 : 1; }
  [[nodiscard]] bool is_audited(FragmentId p, protocol::Round round) const;
  void measure(FragmentId p, protocol::Round round, std::span<const protocol::SharedBytes> results,
               const methods::OuterRule& rule);
  void go_ahead(FragmentId p, std::span<const protocol::SharedBytes> stale);
  void count_local_step();
  [[nodiscard]] std::uint64_t max_local_steps() const;
  void go_where_others_are();
  void begin_interval();
  [[nodiscard]] bool may_train_on();
  [[nodiscard]] bool fetch(InFlight& flight, Waiting why);
  void settle(const InFlight& flight, const quant::OuterStep& step);
  void put_back_gradient(ChunkId chunk, const Bytes& bytes);
  void take_samples(InFlight& flight);
  void contribute(InFlight& flight, std::uint64_t weight, std::uint64_t step, EncodedChunk encoded);
  void end_warmup();
  void offer_state();
  void begin_log();
  void snapshot_to_log(FragmentId p);
  void count_moment_steps();
  [[noreturn]] static void refuse_result(protocol::Round round, ChunkId chunk);
  [[nodiscard]] bool rounds_fit(const std::vector<protocol::FragmentState>& fragments,
                                const std::list<InFlight>& in_flight, std::uint64_t step) const;
  [[nodiscard]] bool is_late() const;
  void record(const InFlight& flight);
  void extend_chain(FragmentId p, std::span<const protocol::SharedBytes> results,
                    std::vector<SampleRange> samples);
  void apply_all_in_flight();
  void sync_once_more();
  [[nodiscard]] double& waited(Waiting why);

  const FragmentLayout& layout_;
  std::unique_ptr<OuterState> state_;
  RoundExchange& exchange_;
  Trace& trace_;
  protocol::CodecPlan codecs_;
  OuterConfig config_;
  protocol::Settings settings_;
  std::shared_ptr<const protocol::Settings> taken_;  ///< these, as the exchange has given them
  SettingsTimeline timeline_;
  Schedule schedule_;
  bool whole_round_, eager_, carries_;
  float share_;  ///< of one replica in a mean, for eager updates
  std::uint64_t noise_seed_;
  bool final_sync_;
  bool paced_by_time_;
  InnerMoments* moments_ = nullptr;

  std::uint64_t step_ = 0;
  bool frozen_ = false;  ///< the clock stands still; also while a view forms
  bool commits_ = true;
  /// Steps that may still be made while a view forms; H again from the agreed step `extra_until_` on.
  std::uint64_t extra_steps_ = 0, extra_until_ = 0;
  std::uint64_t local_steps_ = 0;  ///< since the clock froze
  std::uint64_t owed_ = 0;         ///< agreed steps that are completed by inner steps, and not made yet
  std::uint64_t limit_ = std::numeric_limits<std::uint64_t>::max();
  methods::Pace pace_;
  double speed_ = 0, reference_speed_ = 0;
  std::vector<protocol::FragmentState> fragments_;
  std::vector<std::uint64_t> ruled_;   ///< by fragment: step of the last round that was applied here
  std::vector<std::uint64_t> tokens_;  ///< by fragment, since it was last sent
  std::vector<SampleSet> samples_;     ///< the same
  std::vector<FragmentFigures> figures_;
  /// By fragment: inner steps behind the moments that came with it; nothing where none came.
  std::vector<std::optional<std::uint64_t>> moment_steps_;
  AlignedVector<float> gradient_residual_;  ///< of warm-up gradients; empty after the warm-up
  /// In the order they were sent. A list: another thread may hold a reference to one while others come and
  /// go.
  std::list<InFlight> in_flight_;
  GradientObserver gradient_observer_;
  std::optional<LogPlan> log_plan_;
  std::unique_ptr<log::RoundLog> log_;
  Stats stats_;
};

/// The global parameters, flat, in SavedOuterLoop::agreed. Throws Error(data) when it is no state of this
/// layout.
[[nodiscard]] AlignedVector<float> saved_global_parameters(std::span<const std::byte> agreed,
                                                           const FragmentLayout& layout);

}  // namespace isthmus::outer_sync
