#pragma once
// Follows a run's global parameters from outside, for `isthmus observe` and the observers of the Python
// binding. No app/participant: it makes no steps, is in no view, and takes part in no agreement.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

/// Used by one thread. It is in no view of the run, so no member waits for it.
class Follower {
 public:
  using Rounds = std::vector<outer_sync::protocol::Round>;

  /// The layout must outlive it. `while_waiting` is called regularly during waits, and may throw; may be
  /// null. `every`: steps between the moments of `next`; 0: as the run evaluates.
  Follower(const Experiment& experiment, const outer_sync::FragmentLayout& layout,
           std::function<void()> while_waiting, std::uint64_t every = 0);

  /// Throws Error(config) if rejected, Error(network) if no coordinator answers.
  void join(outer_sync::protocol::Hello hello);

  /// A moment at which the global parameters are those of one step or, if the run continued while its state
  /// was copied, of the rounds that `rounds` returns.
  struct Moment {
    std::optional<std::uint64_t> step;
  };
  /// Blocks until the next step that the run evaluates (`run.eval_every`), or of `every`. nullopt once the
  /// run has ended: the parameters are then the final ones, if `has_state`.
  [[nodiscard]] std::optional<Moment> next();
  /// Blocks until it has caught up with the run, at any step. False once the run has ended.
  [[nodiscard]] bool catch_up();

  [[nodiscard]] bool has_state() const { return seen_.has_state; }
  /// States and rounds applied so far.
  [[nodiscard]] std::uint64_t arrived() const { return arrived_; }
  /// The step by which the applied rounds are due.
  [[nodiscard]] std::uint64_t step() const { return loop_.schedule().step_with(rounds(), 1); }
  /// Newest applied round of each fragment.
  [[nodiscard]] Rounds rounds() const;
  [[nodiscard]] std::span<const float> global_parameters() { return loop_.global_parameters(); }
  [[nodiscard]] Digest global_hash() { return loop_.global_hash(); }
  /// Describes the end of a run; requires `has_state`. Throws Error(divergence) if the run ended badly, or
  /// with other parameters than are here.
  [[nodiscard]] std::string verdict();
  void leave(const std::string& why) { node_.leave(why); }

 private:
  /// The loop's local parameters, which are not trained.
  class PlainParameters final : public outer_sync::LocalParameters {
   public:
    explicit PlainParameters(std::uint64_t size) : values_(size, 0.0F) {}
    std::span<const float> read(outer_sync::Range range) override { return modify(range); }
    std::span<float> modify(outer_sync::Range range) override {
      return std::span(values_).subspan(range.begin, range.size);
    }
    void modified(outer_sync::Range) override {}

   private:
    std::vector<float> values_;
  };

  /// Applies what comes next. False once the run has ended and nothing more will come.
  [[nodiscard]] bool follow(const Rounds& until);
  [[nodiscard]] Rounds all() const;
  [[nodiscard]] Rounds limits() const;
  [[nodiscard]] bool is_over() const;
  [[nodiscard]] bool is_at_target() const;
  void drain();

  const Experiment& config_;
  const outer_sync::FragmentLayout& layout_;
  std::uint64_t every_;  ///< steps between two moments
  Trace trace_;
  PlainParameters local_;
  outer_sync::MemberNode node_;
  outer_sync::OuterLoop loop_;
  outer_sync::Following seen_;
  std::uint64_t arrived_ = 0;
  std::optional<std::uint64_t> target_;  ///< step of the next moment; nullopt before the state is here
};

}  // namespace isthmus::app
