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

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "isthmus/base/hash.h"
#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/config.h"
#include "isthmus/outer_sync/local_parameters.h"
#include "isthmus/outer_sync/methods/schedule.h"
#include "isthmus/outer_sync/outer_state.h"
#include "isthmus/outer_sync/round_exchange.h"

namespace isthmus::outer_sync {

/// The codec of each round, as the config says; `seed` is the run's.
[[nodiscard]] protocol::CodecPlan codec_plan(const OuterConfig& config, std::uint64_t seed = 0);

class OuterLoop {
 public:
  /// The references must outlive the loop. `config` must be resolved. `noise_seed`, for stochastic rounding,
  /// differs from replica to replica.
  OuterLoop(const OuterConfig& config, const FragmentLayout& layout, std::unique_ptr<OuterState> state,
            RoundExchange& exchange, Trace& trace, std::uint64_t noise_seed = 0);
  /// With a HostOuterState: global parameters start as the local ones.
  OuterLoop(const OuterConfig& config, const FragmentLayout& layout, LocalParameters& local,
            RoundExchange& exchange, Trace& trace, std::uint64_t noise_seed = 0);

  /// The step that comes is one of the synchronous warm-up: `average_gradients` must be called before its
  /// inner step.
  [[nodiscard]] bool synchronous() const { return step_ < schedule_.warmup_steps(); }
  /// Replaces this replica's gradients (flat, whole buffer), of `tokens` tokens, by the mean over replicas as
  /// all of them decode it. Throws Error(divergence) when a gradient is not finite.
  void average_gradients(std::span<float> gradients, std::uint64_t tokens);

  /// Called with every outer gradient before it is encoded: global minus local parameters of one fragment,
  /// without what error feedback adds. For those who want to look at them; null for nobody.
  using GradientObserver = std::function<void(FragmentId, std::uint64_t step, std::span<const float> global,
                                              std::span<const float> local)>;
  void observe_gradients(GradientObserver observer) { gradient_observer_ = std::move(observer); }

  /// After each inner step, of `tokens` tokens: a contribution's weight is what its fragment was trained on
  /// since it was last sent. Returns at once unless a result is due that has not come.
  void after_step(std::uint64_t tokens);
  /// After the last step: applies what is in flight and, with `outer.final_sync`, one more round of every
  /// fragment.
  void finish();

  [[nodiscard]] std::uint64_t step() const { return step_; }
  /// Flat, whole buffer; valid until the next call that changes the loop.
  [[nodiscard]] std::span<const float> global_parameters();
  [[nodiscard]] Digest global_hash();
  [[nodiscard]] const std::vector<protocol::FragmentState>& fragments() const { return fragments_; }

  struct Stats {
    std::uint64_t rounds = 0;         ///< applied, all fragments
    std::uint64_t warmup_rounds = 0;  ///< of these, averaged gradients
    double stall_seconds = 0;         ///< steps waited for a late result
    double warmup_wait_seconds = 0;   ///< synchronous steps waited for the mean gradient
    double finish_seconds = 0;        ///< `finish` waited for the last rounds
  };
  [[nodiscard]] const Stats& stats() const { return stats_; }

  /// Everything that is not in the local parameters. Waits until the results of all rounds in flight are here
  /// (they are saved, not applied), so that nothing has to be sent again after a restart.
  [[nodiscard]] Bytes save();
  /// Throws Error(data) when the bytes are not such a state of this layout.
  void restore(std::span<const std::byte> state);

 private:
  struct InFlight {
    FragmentId fragment;
    protocol::Round round;
    std::uint64_t sent_step;
    Trace::Clock::time_point sent;
    std::optional<RoundResult> result;
  };
  enum class Waiting { stall, warmup, finish, save };

  void send(FragmentId p);
  void apply(FragmentId p, const quant::OuterStep& rule, Waiting why);
  void fetch(InFlight& flight, Waiting why);
  void contribute(protocol::Round round, std::uint64_t weight, EncodedChunk encoded);
  void refuse_result(const InFlight& flight, ChunkId chunk) const;
  void record(const InFlight& flight);
  void apply_all_in_flight(Waiting why);
  [[nodiscard]] double& waited(Waiting why);

  const FragmentLayout& layout_;
  std::unique_ptr<OuterState> state_;
  RoundExchange& exchange_;
  Trace& trace_;
  protocol::CodecPlan codecs_;
  Schedule schedule_;
  quant::OuterStep step_rule_;
  float carried_;  ///< part of the residual that goes into the next outer gradient
  std::uint64_t noise_seed_;
  bool final_sync_;

  std::uint64_t step_ = 0;
  std::vector<protocol::FragmentState> fragments_;
  std::vector<std::uint64_t> tokens_;       ///< by fragment, since it was last sent
  AlignedVector<float> gradient_residual_;  ///< of warm-up gradients; empty after the warm-up
  std::deque<InFlight> in_flight_;          ///< in the order they were sent
  GradientObserver gradient_observer_;
  Stats stats_;
};

}  // namespace isthmus::outer_sync
