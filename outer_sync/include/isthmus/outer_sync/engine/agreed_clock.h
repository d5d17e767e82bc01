#pragma once
// The agreed step: which ones inner steps have completed, and whether it stands still because a due result is
// missing. Called by the trainer's thread. The schedule may change between two calls.

#include <cstdint>
#include <limits>

#include "isthmus/outer_sync/core/pace.h"
#include "isthmus/outer_sync/core/schedule.h"

namespace isthmus::outer_sync {

class AgreedClock {
 public:
  /// `paced_by_time`: an inner step may complete several agreed steps, or none; otherwise it completes one.
  explicit AgreedClock(bool paced_by_time) : paced_by_time_(paced_by_time) {}

  [[nodiscard]] std::uint64_t step() const { return step_; }
  /// Makes a warm-up step.
  void make_warmup_step() { ++step_; }
  /// Counts an inner step.
  void count_inner_step(const Schedule& schedule);
  /// Whether inner steps have completed an agreed step that can be made now. Drops those past the last one.
  [[nodiscard]] bool has_step();
  /// Makes it.
  void make_step();
  /// Continues at this step; completed agreed steps that were not made are dropped.
  void go_to(std::uint64_t step);
  /// Sets the last agreed step.
  void end_at(std::uint64_t step) { limit_ = step; }
  /// Inner steps per second of this replica and of the run, from the next sync interval on.
  void set_speeds(double own, double reference) {
    speed_ = own;
    reference_speed_ = reference;
  }
  /// The largest possible agreed step after the next inner step.
  [[nodiscard]] std::uint64_t step_after_next(const Schedule& schedule);
  /// Inner steps of this replica in this sync interval.
  [[nodiscard]] std::uint64_t inner_steps(const Schedule& schedule) const;

  // ---- a due result is missing ----

  /// The clock stands still: rounds do not commit, or a view forms.
  [[nodiscard]] bool stands_still() const { return still_; }
  void set_still(bool still) { still_ = still; }
  /// Whether rounds commit, as far as the last wait for a result has shown.
  [[nodiscard]] bool rounds_commit() const { return rounds_commit_; }
  /// Outcome of a wait that this replica may have ended without the result.
  void waited(bool rounds_commit, bool has_result);
  /// Begins with the state of a checkpoint or of other members; `late`: a due result is missing.
  void begin(bool late);
  void run_on();
  /// Counts an inner step made while the clock stands still.
  void count_local_step() { local_steps_ += rounds_commit_ ? 0 : 1; }
  /// Whether fewer local steps than those of `rounds` rounds were made since the clock stopped.
  [[nodiscard]] bool may_train(std::uint64_t rounds, const Schedule& schedule) const;
  /// Whether this replica may train on while a view forms: for at most as many steps as it makes in an
  /// interval.
  [[nodiscard]] bool may_train_on(const Schedule& schedule);

  // ---- checkpoints ----

  struct Saved {
    Pace pace;
    std::uint64_t owed = 0;
    template <class Archive>
    void serialize(Archive& ar) {
      ar(pace, owed);
    }
  };
  [[nodiscard]] Saved saved() const { return {pace_, owed_}; }
  /// Whether this can be the state after `steps` agreed steps outside the warm-up.
  [[nodiscard]] bool fits(const Saved& saved, std::uint64_t steps) const;
  void restore(const Saved& saved, std::uint64_t step);

 private:
  void begin_interval(const Schedule& schedule);

  bool paced_by_time_;
  std::uint64_t step_ = 0;
  std::uint64_t owed_ = 0;  ///< agreed steps completed by inner steps and not made yet
  std::uint64_t limit_ = std::numeric_limits<std::uint64_t>::max();
  Pace pace_;
  double speed_ = 0, reference_speed_ = 0;
  bool still_ = false, rounds_commit_ = true;
  std::uint64_t local_steps_ = 0;  ///< since the clock stopped; those while a view forms do not count
  /// Steps that may still be made while a view forms; renewed at the agreed step `extra_until_`.
  std::uint64_t extra_steps_ = 0, extra_until_ = 0;
};

}  // namespace isthmus::outer_sync
