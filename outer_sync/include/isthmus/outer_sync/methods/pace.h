#pragma once
// How many inner steps a replica makes while the agreed clock goes through one sync interval, so that slow
// and fast ones come to its end at the same time (dynamic local updates of asynchronous Local-SGD, arXiv
// 2401.09135, with a clock that all share). No agreed state: each replica has its own.

#include <cstdint>

namespace isthmus::outer_sync::methods {

class Pace {
 public:
  static constexpr double slowest = 1.0 / 8, fastest = 8;
  /// Speeds are measured: a ratio changes only when it is off by more than this part.
  static constexpr double tolerance = 1.0 / 16;

  /// Begins an interval of `agreed` >= 1 agreed steps. `own` and `reference`: inner steps per second of this
  /// replica and of the run. Where one of them is not known (not above 0, not finite) the ratio stays as it
  /// was.
  void begin(std::uint64_t agreed, double own, double reference);
  /// Counts one inner step; returns how many agreed steps it completes: `inner()` of them complete `agreed`.
  /// Not when the interval is over.
  [[nodiscard]] std::uint64_t tick();
  /// What the next `tick` returns.
  [[nodiscard]] std::uint64_t next() const { return completed(made_ + 1) - completed(made_); }
  /// The interval is over before its end: the clock was set.
  void cut_short() { made_ = inner_; }
  /// All inner steps of the interval are made; so it is before the first one.
  [[nodiscard]] bool over() const { return made_ == inner_; }

  /// Inner steps in this interval (H_m); 0 before the first one.
  [[nodiscard]] std::uint64_t inner() const { return inner_; }
  /// rho = H_m / H, but for the rounding of H_m.
  [[nodiscard]] double ratio() const { return ratio_; }

  /// For what comes from a file: whether this state can be.
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

}  // namespace isthmus::outer_sync::methods
