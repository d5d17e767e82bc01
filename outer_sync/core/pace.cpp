#include "isthmus/outer_sync/core/pace.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace isthmus::outer_sync {

namespace {
/// With this limit, products of two counts fit in 64 bits.
constexpr std::uint64_t longest_interval = 1'000'000'000;
bool is_speed(double value) { return std::isfinite(value) && value > 0; }
std::uint64_t inner_steps(double ratio, std::uint64_t agreed) {
  return std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(std::llround(ratio * static_cast<double>(agreed))));
}
}  // namespace

void Pace::begin(std::uint64_t agreed, double own, double reference) {
  assert(agreed >= 1 && agreed <= longest_interval);
  if (is_speed(own) && is_speed(reference)) {
    const double measured = std::clamp(own / reference, slowest, fastest);
    if (std::abs(measured / ratio_ - 1) > tolerance) ratio_ = measured;
  }
  agreed_ = agreed;
  inner_ = inner_steps(ratio_, agreed);
  made_ = 0;
}

std::uint64_t Pace::tick() {
  assert(!over());
  const auto steps = next();
  ++made_;
  return steps;
}

bool Pace::sound() const {
  if (!(ratio_ >= slowest && ratio_ <= fastest)) return false;
  if (inner_ == 0) return agreed_ == 0 && made_ == 0;
  return agreed_ >= 1 && agreed_ <= longest_interval && inner_ == inner_steps(ratio_, agreed_) &&
         made_ <= inner_;
}

}  // namespace isthmus::outer_sync
