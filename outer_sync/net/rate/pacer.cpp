#include "net/rate/pacer.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace isthmus::outer_sync::transport {

Pacer::Pacer(std::uint64_t bytes_per_second, Clock::duration depth)
    : bytes_per_second_(static_cast<double>(bytes_per_second)), depth_(depth) {
  assert(bytes_per_second > 0);
}

void Pacer::set_rate(std::uint64_t bytes_per_second) {
  assert(bytes_per_second > 0);
  bytes_per_second_ = static_cast<double>(bytes_per_second);
}

Pacer::Clock::time_point Pacer::next(Clock::time_point now) const { return std::max(next_, now - depth_); }

Pacer::Clock::time_point Pacer::take(std::size_t bytes, Clock::time_point now) {
  next_ = next(now);
  const std::chrono::duration<double> lasts(static_cast<double>(bytes) / bytes_per_second_);
  return std::exchange(next_, next_ + std::chrono::ceil<Clock::duration>(lasts));
}

double Pacer::depth_in_bytes() const {
  return bytes_per_second_ * std::chrono::duration<double>(depth_).count();
}

}  // namespace isthmus::outer_sync::transport
