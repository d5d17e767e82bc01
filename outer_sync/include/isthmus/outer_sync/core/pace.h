#pragma once
// How many inner steps a replica makes during one sync interval of agreed steps, so that slow and fast
// replicas reach its end at the same time (dynamic local updates of asynchronous Local-SGD, arXiv 2401.09135,
// here with agreed steps that all share). Not agreed state: each replica has its own.

#include <cstdint>

namespace isthmus::outer_sync {

class Pace {
 public:
  static constexpr double slowest = 1.0 / 8, fastest = 8;
  /// Speeds are measured, so the ratio changes only if it is off by more than this share.
  static constexpr double tolerance = 1.0 / 16;
  /// Maximum number of agreed steps that one inner step completes: 11, since at 1/8 of the speed an interval
  /// of 12 has two inner steps.
  static constexpr std::uint64_t max_completed = 11;

  /// Begins an interval of `agreed` >= 1 agreed steps. `own` and `reference`: inner steps per second of this
  /// replica and of the run. If one of them is unknown (not above 0, not finite), the ratio does not change.
  void begin(std::uint64_t agreed, double own, double reference);
  /// Counts one inner step and returns how many agreed steps it completes: `inner()` inner steps complete
  /// `agreed` ones. Requires !over().
  [[nodiscard]] std::uint64_t tick();
  /// The value that the next `tick` will return.
  [[nodiscard]] std::uint64_t next() const { return completed(made_ + 1) - completed(made_); }
  /// Ends the interval early, because the agreed step was set.
  void cut_short() { made_ = inner_; }
  /// All inner steps of the interval are made; also true before the first interval.
  [[nodiscard]] bool over() const { return made_ == inner_; }

  /// Inner steps in this interval (H_m); 0 before the first interval.
  [[nodiscard]] std::uint64_t inner() const { return inner_; }
  /// rho: H_m / H, except that H_m is rounded.
  [[nodiscard]] double ratio() const { return ratio_; }

  /// Whether this state, read from a file, is valid.
  [[nodiscard]] bool sound() const;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(agreed_, inner_, made_, ratio_);
  }

 private:
  [[nodiscard]] std::uint64_t completed(std::uint64_t inner_steps) const {
    return inner_steps * agreed_ / inner_;
  }

  std::uint64_t agreed_ = 0, inner_ = 0, made_ = 0;
  double ratio_ = 1;
};

}  // namespace isthmus::outer_sync
