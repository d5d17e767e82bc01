#include "link.h"

#include <algorithm>
#include <cmath>

namespace isthmus::wan_lab {
namespace {

constexpr double second = 1e9;
constexpr Nanoseconds shortest_jitter_period = 10'000'000;
constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

// splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), as a function of a
// counter.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t z = seed + (counter + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// In (0, 1).
double uniform(std::uint64_t seed, std::uint64_t counter) {
  return (static_cast<double>(random_bits(seed, counter) >> 11) + 0.5) * 0x1p-53;
}

}  // namespace

Link::Link(std::uint64_t seed) : seed_(random_bits(seed, 0)) { set({}); }

void Link::set(const LinkSettings& settings) {
  const bool other_loss = settings.loss != settings_.loss || draws_ == 0;
  settings_ = settings;
  longest_wait_ = settings.queue_bytes ? serialisation(settings.queue_bytes) : settings.queue;
  if (other_loss) until_loss_ = packets_until_loss();
}

Nanoseconds Link::serialisation(std::uint64_t bytes) const {
  return std::llround(static_cast<double>(bytes) * 8 * second /
                      static_cast<double>(settings_.bits_per_second));
}

// Interpolates linearly between values drawn for fixed times; the slope is too small to change the order of
// packets.
Nanoseconds Link::jitter(Nanoseconds at) const {
  if (settings_.jitter == 0) return 0;
  const auto period = std::max(shortest_jitter_period, 2 * settings_.jitter);
  const auto point = static_cast<std::uint64_t>(at / period);
  const double part = static_cast<double>(at % period) / static_cast<double>(period);
  const double value = (1 - part) * uniform(~seed_, point) + part * uniform(~seed_, point + 1);
  return std::llround(value * static_cast<double>(settings_.jitter));
}

// Geometrically distributed: one draw per loss, not per packet.
std::uint64_t Link::packets_until_loss() {
  if (settings_.loss <= 0) return never;
  if (settings_.loss >= 1) return 0;
  return static_cast<std::uint64_t>(std::log(uniform(seed_, draws_++)) / std::log1p(-settings_.loss));
}

bool Link::draw_loss() {
  if (until_loss_ == never) return false;
  if (until_loss_-- > 0) return false;
  until_loss_ = packets_until_loss();
  return true;
}

void Link::send(Nanoseconds now, const Burst& burst, std::vector<Run>& arriving) {
  const std::uint64_t whole = std::uint64_t{burst.count - 1} * burst.bytes + burst.last_bytes;
  counters.entered.add(burst.count, whole);
  if (settings_.cut) return counters.cut_drops.add(burst.count, whole);

  free_at_ = std::max(free_at_, now);
  const auto start = free_at_;
  std::uint64_t on_link = 0;  // bytes of this burst that were serialised
  bool open = false;          // whether the next packet extends the last run
  for (std::uint32_t i = 0; i < burst.count; ++i) {
    const auto bytes = i + 1 < burst.count ? burst.bytes : burst.last_bytes;
    if (free_at_ - now > longest_wait_) {
      counters.queue_drops.add(1, bytes);
      open = false;
      continue;
    }
    on_link += bytes;
    free_at_ = start + serialisation(on_link);
    if (draw_loss()) {
      counters.losses.add(1, bytes);
      open = false;
      continue;
    }
    if (!open) arriving.push_back({i, 0, 0, 0});
    open = true;
    auto& run = arriving.back();
    run.count += 1;
    run.bytes += bytes;
    last_arrival_ = std::max(last_arrival_, free_at_ + settings_.delay + jitter(free_at_));
    run.arrival = last_arrival_;
  }
}

}  // namespace isthmus::wan_lab
