#pragma once
// Streaming DiLoCo's outer loop (arXiv 2501.18512, Algorithm 2) over one flat parameter buffer, called by the
// trainer's thread:
//
//   OuterLoop loop(config, layout, local_parameters, exchange, trace);
//   each step:  if (loop.synchronous()) loop.average_gradients(gradients, tokens);
//               ... inner optimizer ...
//               loop.after_step(tokens);
//   at the end: loop.finish();
//
// The global parameters depend only on their initial values and the rounds' result bytes: every member, the
// chunk owner included, applies the same decoded bytes with the same arithmetic. `step()` is the agreed step,
// by which all replicas send and apply a round at the same time. If a due result is missing and rounds do not
// commit, it stands still while inner steps continue (`frozen()`). With `outer.pace: time` an inner step may
// complete several agreed steps, or none (core/pace.h).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "isthmus/base/hash.h"
#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/engine/agreed_clock.h"
#include "isthmus/outer_sync/engine/gossip.h"
#include "isthmus/outer_sync/engine/inner_moments.h"
#include "isthmus/outer_sync/engine/live_settings.h"
#include "isthmus/outer_sync/engine/local_parameters.h"
#include "isthmus/outer_sync/engine/outer_state.h"
#include "isthmus/outer_sync/engine/round_exchange.h"
#include "isthmus/outer_sync/engine/rounds_in_flight.h"
#include "isthmus/outer_sync/engine/step_figures.h"
#include "isthmus/outer_sync/engine/unsent_work.h"
#include "isthmus/outer_sync/log/round_log.h"

namespace isthmus::outer_sync {

/// The outer loop's part of a checkpoint.
struct SavedOuterLoop {
  Bytes agreed;  ///< step, rounds, global parameters and momentum; the same bytes on all replicas
  Bytes own;     ///< this replica's residuals, rounds in flight and tokens
  friend bool operator==(const SavedOuterLoop&, const SavedOuterLoop&) = default;
};

/// It has more public functions than other classes, because trainers, joining members and observers all use
/// it: it decides when something happens. Its parts know the settings, the clock, the work and the numbers.
class OuterLoop {
 public:
  /// The references must outlive the loop. `config` must be resolved. `noise_seed`, for stochastic rounding,
  /// differs between replicas.
  OuterLoop(const OuterConfig& config, const FragmentLayout& layout, std::unique_ptr<OuterState> state,
            RoundExchange& exchange, Trace& trace, std::uint64_t noise_seed = 0);
  /// With an outer state in host memory; the global parameters start as the local ones.
  OuterLoop(const OuterConfig& config, const FragmentLayout& layout, LocalParameters& local,
            RoundExchange& exchange, Trace& trace, std::uint64_t noise_seed = 0);
  ~OuterLoop();
  OuterLoop(const OuterLoop&) = delete;
  OuterLoop& operator=(const OuterLoop&) = delete;

  /// Whether the next step belongs to the synchronous warm-up: then call `average_gradients` before its inner
  /// step.
  [[nodiscard]] bool synchronous() const { return step() < schedule().warmup_steps(); }
  /// Replaces this replica's gradients (flat, whole buffer), computed from `tokens` tokens of `samples`, by
  /// the mean over replicas as all replicas decode it. Throws Error(divergence) if a gradient is not finite.
  void average_gradients(std::span<float> gradients, std::uint64_t tokens,
                         std::span<const SampleRange> samples = {});

  /// Called with every outer gradient before it is encoded: the global and local parameters of one fragment;
  /// their difference is the outer gradient without error feedback. For diagnostics; null removes the
  /// observer.
  using GradientObserver = std::function<void(FragmentId, std::uint64_t step, std::span<const float> global,
                                              std::span<const float> local)>;
  void observe_gradients(GradientObserver observer) { gradient_observer_ = std::move(observer); }

  /// Called after each round that was applied at its step, warm-up rounds excluded, with the samples of all
  /// replicas that the ledger has for the round.
  using AppliedObserver =
      std::function<void(FragmentId, protocol::Round, std::span<const SampleRange> samples)>;
  void observe_applied(AppliedObserver observer) { applied_observer_ = std::move(observer); }

  /// Logs the rounds applied from now on (log/round_log.h).
  struct LogPlan {
    std::filesystem::path folder;
    log::LogHeader header;
    std::uint64_t budget = 0;  ///< bytes
  };
  void keep_log(LogPlan plan) { log_plan_ = std::move(plan); }

  /// Call after each inner step, with the tokens and sequences it was trained on; a contribution's weight is
  /// the tokens its fragment was trained on since it was last sent. (In the warm-up `average_gradients` has
  /// received both.) Returns at once unless a due result is missing. While rounds do not commit or a view
  /// forms (then for at most H steps per interval), the agreed step freezes until the missing result is here.
  /// If the inner step completes several agreed steps, only the first is made here.
  void after_step(std::uint64_t tokens, std::span<const SampleRange> samples = {});
  /// Makes the next agreed step that is already completed; false if none is left or the agreed step is
  /// frozen. With `outer.pace: time`, call it after `after_step` until it returns false; otherwise there
  /// never is one.
  [[nodiscard]] bool next_step();
  /// Call before each inner step. False if rounds have not committed for outer.max_local_rounds * H local
  /// steps: the replica keeps its state and waits, since it may be the only one with that state. The call
  /// takes a moment, in which it asks for the missing results.
  [[nodiscard]] bool may_train();
  /// The largest possible agreed step after the next inner step.
  [[nodiscard]] std::uint64_t step_after_next() { return clock_.step_after_next(schedule()); }
  /// Sets the last agreed step.
  void end_at(std::uint64_t step) { clock_.end_at(step); }
  /// For `outer.pace: time`: inner steps per second of this replica, waits excluded, and of the run. Takes
  /// effect at the next sync interval.
  void set_speeds(double own, double reference) { clock_.set_speeds(own, reference); }
  /// The agreed step cannot pass this one while rounds sent after `step` do not commit.
  [[nodiscard]] std::uint64_t reach(std::uint64_t step) const {
    // With a quorum, results of rounds that this replica has not sent may be here already.
    return schedule().reach(step, live_.base().quorum > 0 ? protocol::Member::window : 0);
  }
  [[nodiscard]] const Schedule& schedule() const { return live_.schedule(); }
  /// Live settings, as far as this replica knows them.
  [[nodiscard]] const protocol::Settings& settings() const { return live_.settings(); }
  /// For observers: the settings under which the followed rounds are made. Throws Error(config) for invalid
  /// values, and Evicted if it has followed rounds under other settings.
  void adopt(const protocol::Settings& settings) { live_.change_to(settings, 0); }
  /// Inner steps of this replica in this sync interval: H, or H_m with `outer.pace: time`.
  [[nodiscard]] std::uint64_t inner_steps() const { return clock_.inner_steps(schedule()); }
  /// Rounds do not commit, so the agreed step stands still; the last step was a local one.
  [[nodiscard]] bool frozen() const { return clock_.stands_still() && !clock_.rounds_commit(); }
  /// Applies results due at the agreed step that are missing because the next view formed, so that this step
  /// is complete here as on the other replicas. Call before reading the state. False if rounds do not commit.
  bool complete_step();
  /// No round of this replica is in flight.
  [[nodiscard]] bool quiet() const { return in_flight_.empty(); }
  /// Call after the last step: applies what is in flight and, with `outer.final_sync`, one more round of
  /// every fragment. Waits as long as necessary.
  void finish();

  // ---- joining and leaving members; only after the warm-up ----

  /// Shares the moments of this replica's inner optimizer, which must outlive the loop: joining replicas may
  /// copy them, and this replica installs received moments together with the state.
  void share_moments(InnerMoments& moments) { moments_ = &moments; }
  /// Copies a fragment's current state; with moments only if they are shared.
  [[nodiscard]] FragmentSnapshot snapshot(FragmentId fragment, bool with_moments = false);
  /// Installs a fragment's state from another member, with its moments if there are any. Throws
  /// Error(network) if it does not fit this layout.
  void install(const FragmentSnapshot& snapshot);
  /// Applies the fragment's next round to the global parameters only. Throws Error(network) if the results do
  /// not fit its chunks, Error(divergence) if they do not decode.
  void follow(FragmentId fragment, std::span<const protocol::SharedBytes> results);
  /// Begins to train at the agreed step `step`: local parameters become the global ones and residuals are
  /// cleared. To rounds that were sent by then and are not applied here yet, this replica contributes
  /// nothing, with weight 0. Throws Error(network) if step and rounds cannot belong to one run.
  void begin_at(std::uint64_t step);
  /// Call before copying the state from other members. Waits.
  void finish_hand_overs();

  [[nodiscard]] std::uint64_t step() const { return clock_.step(); }
  /// Samples that this replica was trained on and that are not yet in an applied round of every fragment; may
  /// include some that are.
  [[nodiscard]] SampleSet pending_samples() const;
  /// The whole flat buffer; valid until the next call that changes the loop.
  [[nodiscard]] std::span<const float> global_parameters();
  [[nodiscard]] Digest global_hash();
  [[nodiscard]] const std::vector<protocol::FragmentState>& fragments() const { return fragments_; }
  /// The rounds in flight that have their results: after `restore`, all of them.
  [[nodiscard]] std::vector<protocol::DecidedRound> decided_rounds() const;

  /// By fragment; default values until this process has applied a checked round.
  [[nodiscard]] const std::vector<FragmentFigures>& figures() const { return figures_; }

  struct Stats {
    std::uint64_t rounds = 0;         ///< applied, all fragments
    std::uint64_t warmup_rounds = 0;  ///< of these, rounds of averaged gradients
    std::uint64_t left_out = 0;       ///< rounds without some of this replica's chunks
    std::uint64_t rejected = 0;       ///< rounds that rejected some of its chunks for their norm, for good
    std::uint64_t uncommitted_steps = 0;  ///< made while the agreed step stood still
    std::uint64_t late_results = 0;       ///< results that were not here when their step came
    double stall_seconds = 0;             ///< time that steps waited for a late result
    double warmup_wait_seconds = 0;       ///< time that warm-up steps waited for the mean gradient
    double finish_seconds = 0;            ///< time that `finish` waited for the last rounds
    std::uint64_t measured = 0;           ///< outer steps with momentum and figures
    double gains = 0, correlations = 0;   ///< sums over these outer steps
  };
  [[nodiscard]] const Stats& stats() const { return stats_; }
  [[nodiscard]] const Gossip::Stats& gossip() const { return gossip_.stats(); }
  /// Whether an exchange in pairs may begin or end at this agreed step.
  [[nodiscard]] bool may_exchange_at(std::uint64_t step) const { return gossip_.may_act(schedule(), step); }

  /// Call before `save`: waits for the results of all rounds in flight. False if rounds do not commit at
  /// present.
  [[nodiscard]] bool await_results();
  /// Serialises everything except the local parameters into the buffers of `memory`. Waits for the results of
  /// rounds in flight; they are saved but not applied, so that a restart sends nothing again. Returns nullopt
  /// if rounds do not commit at present.
  [[nodiscard]] std::optional<SavedOuterLoop> save(SavedOuterLoop memory = {});
  /// `settings`: those in force at the save. Throws Error(data) if the bytes are not such a state of this
  /// layout.
  void restore(std::span<const std::byte> agreed, std::span<const std::byte> own,
               const protocol::Settings& settings = {});
  void restore(const SavedOuterLoop& saved, const protocol::Settings& settings = {}) {
    restore(saved.agreed, saved.own, settings);
  }
  /// The parts of another loop's `SavedOuterLoop::own` that are not this loop's, for audits. The residuals
  /// that a replica keeps as an owner are not compared.
  struct Differences {
    std::vector<std::string> exact;   ///< equal on any machine: counts, samples, outcomes
    std::vector<std::string> values;  ///< computed from parameters
  };
  /// The result of a round in flight, if it is known.
  using Outcome = std::function<std::optional<RoundResult>(FragmentId, protocol::Round)>;
  /// Throws Error(data) if the bytes are no such state.
  [[nodiscard]] Differences differences_from(std::span<const std::byte> own, const Outcome& outcome);

 private:
  enum class Waiting { stall, warmup, finish, save, at_limit };

  [[nodiscard]] bool carries() const { return live_.base().carries(); }
  void go_where_others_are();
  [[nodiscard]] bool complete(Waiting why);
  [[nodiscard]] bool send_and_apply_due(Waiting why);
  void send_what_is_due(FragmentId p);
  InFlight& begin_round(FragmentId p, protocol::Round round);
  void contribute(InFlight& flight, std::uint64_t weight, std::uint64_t step, EncodedChunk encoded);
  [[nodiscard]] bool apply(FragmentId p, Waiting why);
  [[nodiscard]] bool fetch(InFlight& flight, Waiting why);
  [[nodiscard]] double& waited(Waiting why);
  void settle(const InFlight& flight, const quant::OuterStep& step);
  void put_back_gradient(ChunkId chunk, const Bytes& bytes);
  void record(const InFlight& flight);
  void extend_chain(FragmentId p, std::span<const protocol::SharedBytes> results,
                    std::vector<SampleRange> samples);
  [[nodiscard]] bool is_checked(FragmentId p, protocol::Round round) const;
  void measure(FragmentId p, protocol::Round round, std::span<const protocol::SharedBytes> results,
               const quant::OuterStep& rule);
  [[noreturn]] static void refuse_result(protocol::Round round, ChunkId chunk);
  void apply_all_in_flight();
  void sync_once_more();
  void end_warmup();
  void offer_state();
  void begin_log();
  void snapshot_to_log(FragmentId p);
  void count_moment_steps();

  const FragmentLayout& layout_;
  std::unique_ptr<OuterState> state_;
  RoundExchange& exchange_;
  Trace& trace_;
  protocol::CodecPlan codecs_;
  LiveSettings live_;
  AgreedClock clock_;
  std::uint64_t noise_seed_;
  InnerMoments* moments_ = nullptr;
  /// By fragment: inner steps behind the moments that came with its state; nullopt if none came.
  std::vector<std::optional<std::uint64_t>> moment_steps_;
  std::vector<protocol::FragmentState> fragments_;
  UnsentWork unsent_;
  std::vector<FragmentFigures> figures_;
  AlignedVector<float> gradient_residual_;  ///< of warm-up gradients; empty after the warm-up
  RoundsInFlight in_flight_;
  Gossip gossip_;
  GradientObserver gradient_observer_;
  AppliedObserver applied_observer_;
  std::optional<LogPlan> log_plan_;
  std::unique_ptr<log::RoundLog> log_;
  Stats stats_;
};

/// Reads the global parameters, flat, from SavedOuterLoop::agreed. Throws Error(data) if the bytes are not a
/// state of this layout.
[[nodiscard]] AlignedVector<float> saved_global_parameters(std::span<const std::byte> agreed,
                                                           const FragmentLayout& layout);

/// Reads the rounds and chain hashes, by fragment, in the same way.
[[nodiscard]] std::vector<protocol::FragmentState> saved_fragments(std::span<const std::byte> agreed);

}  // namespace isthmus::outer_sync
