#include "isthmus/trainer/adamw.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "kernels/simd.h"

namespace isthmus::trainer {
namespace {

constexpr std::size_t norm_block = 4096;
constexpr std::size_t norm_lanes = 16;
constexpr std::size_t work_block =
    16384;  ///< elements that one thread takes at a time; no result depends on it

template <class G>
ISTHMUS_INLINE double sum_of_squares(const G* g, std::size_t n) {
  double lanes[norm_lanes] = {};
  std::size_t i = 0;
  for (; i + norm_lanes <= n; i += norm_lanes) {
    for (std::size_t j = 0; j < norm_lanes; ++j) {
      const double x = widen(g[i + j]);
      lanes[j] += x * x;
    }
  }
  for (std::size_t j = 0; i + j < n; ++j) {
    const double x = widen(g[i + j]);
    lanes[j] += x * x;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}
ISTHMUS_CLONES double block_sum(const float* g, std::size_t n) { return sum_of_squares(g, n); }
ISTHMUS_CLONES double block_sum(const Bf16* g, std::size_t n) { return sum_of_squares(g, n); }

template <class G>
double norm(const G* gradient, std::size_t size) {
  const std::size_t blocks = (size + norm_block - 1) / norm_block;
  std::vector<double> sums(blocks);
#pragma omp parallel for schedule(static) if (is_worth_sharing(size))
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto begin = b * norm_block;
    sums[b] = block_sum(gradient + begin, std::min(norm_block, size - begin));
  }
  double sum = 0;
  for (const double s : sums) sum += s;
  return std::sqrt(sum);
}

struct Pointers {
  float *p, *m, *v;
  Bf16* twin;
};

template <bool decay, bool has_twin, class G>
ISTHMUS_INLINE void update(const AdamWStep& step, const G* __restrict g, const Pointers& at, std::size_t n) {
  // Copies and restrict pointers exclude aliasing, so that the loop becomes vector code.
  const AdamWStep s = step;
  float* __restrict p = at.p;
  float* __restrict m = at.m;
  float* __restrict v = at.v;
  Bf16* __restrict twin = at.twin;
  for (std::size_t i = 0; i < n; ++i) {
    const float x = s.clip_scale * widen(g[i]);
    const float mean = s.beta1 * m[i] + s.one_minus_beta1 * x;
    const float square = s.beta2 * v[i] + s.one_minus_beta2 * (x * x);
    const float kept = decay ? s.keep * p[i] : p[i];
    const float moved = kept - s.rate * (mean / (std::sqrt(square * s.scale_v) + s.eps));
    m[i] = mean;
    v[i] = square;
    p[i] = moved;
    if constexpr (has_twin) narrow(moved, twin[i]);
  }
}
template <class G>
ISTHMUS_INLINE void update_any(const AdamWStep& step, bool decay, const G* g, const Pointers& at,
                               std::size_t n) {
  if (at.twin != nullptr) {
    decay ? update<true, true>(step, g, at, n) : update<false, true>(step, g, at, n);
  } else {
    decay ? update<true, false>(step, g, at, n) : update<false, false>(step, g, at, n);
  }
}
ISTHMUS_CLONES void update_run(const AdamWStep& step, bool decay, const float* g, const Pointers& at,
                               std::size_t n) {
  update_any(step, decay, g, at, n);
}
ISTHMUS_CLONES void update_run(const AdamWStep& step, bool decay, const Bf16* g, const Pointers& at,
                               std::size_t n) {
  update_any(step, decay, g, at, n);
}

ISTHMUS_CLONES void round_run(const float* from, Bf16* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) narrow(from[i], to[i]);
}
ISTHMUS_CLONES void widen_run(const Bf16* from, float* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = widen(from[i]);
}

/// Calls body(begin, count) for blocks of [0, size): on all threads, if there is enough work for them.
template <class Body>
void in_blocks(std::size_t size, const Body& body) {
#pragma omp parallel for schedule(static) if (is_worth_sharing(size))
  for (std::size_t begin = 0; begin < size; begin += work_block)
    body(begin, std::min(work_block, size - begin));
}

const Bf16* as_bf16(std::span<const std::uint16_t> bits) {
  return reinterpret_cast<const Bf16*>(bits.data());
}
Bf16* as_bf16(std::span<std::uint16_t> bits) { return reinterpret_cast<Bf16*>(bits.data()); }

template <class G>
void adamw_of(const AdamWStep& step, bool decay, const G* gradient, const AdamWSpans& state) {
  const auto size = state.parameters.size();
  assert(state.first_moment.size() == size && state.second_moment.size() == size);
  assert(state.twin.empty() || state.twin.size() == size);
  in_blocks(size, [&](std::size_t begin, std::size_t count) {
    const Pointers at{state.parameters.data() + begin, state.first_moment.data() + begin,
                      state.second_moment.data() + begin,
                      state.twin.empty() ? nullptr : as_bf16(state.twin) + begin};
    update_run(step, decay, gradient + begin, at, count);
  });
}

}  // namespace

BiasCorrection::BiasCorrection(const InnerConfig& config, std::uint64_t steps) {
  // Stops when nothing changes any more: `steps` may come from an untrusted peer and be very large.
  for (std::uint64_t t = 0; t < steps; ++t) {
    const double beta1 = beta1_power_ * config.beta1, beta2 = beta2_power_ * config.beta2;
    if (beta1 == beta1_power_ && beta2 == beta2_power_) break;
    beta1_power_ = beta1;
    beta2_power_ = beta2;
  }
}

AdamWStep BiasCorrection::next(const InnerConfig& config, double lr, float clip_scale) {
  beta1_power_ *= config.beta1;
  beta2_power_ *= config.beta2;
  return {.clip_scale = clip_scale,
          .beta1 = static_cast<float>(config.beta1),
          .one_minus_beta1 = static_cast<float>(1 - config.beta1),
          .beta2 = static_cast<float>(config.beta2),
          .one_minus_beta2 = static_cast<float>(1 - config.beta2),
          .rate = static_cast<float>(lr / (1 - beta1_power_)),
          .scale_v = static_cast<float>(1 / (1 - beta2_power_)),
          .eps = static_cast<float>(config.eps),
          .keep = static_cast<float>(1 - lr * config.weight_decay)};
}

double gradient_norm(std::span<const float> gradient) { return norm(gradient.data(), gradient.size()); }
double gradient_norm(std::span<const std::uint16_t> gradient) {
  return norm(as_bf16(gradient), gradient.size());
}

float clip_scale(double norm, double clip) {
  return clip > 0 && norm > clip ? static_cast<float>(clip / norm) : 1.0F;
}

void adamw(const AdamWStep& step, bool decay, std::span<const float> gradient, const AdamWSpans& state) {
  assert(gradient.size() == state.parameters.size());
  adamw_of(step, decay, gradient.data(), state);
}
void adamw(const AdamWStep& step, bool decay, std::span<const std::uint16_t> gradient_bf16,
           const AdamWSpans& state) {
  assert(gradient_bf16.size() == state.parameters.size());
  adamw_of(step, decay, as_bf16(gradient_bf16), state);
}

std::vector<DecaySegment> decay_segments(std::span<const outer_sync::Range> decay_ranges,
                                         std::uint64_t size) {
  std::vector<DecaySegment> segments;
  std::uint64_t end = 0;
  const auto add = [&](outer_sync::Range range, bool decay) {
    if (range.size > 0) segments.push_back({range, decay});
    end = range.end();
  };
  for (const auto& range : decay_ranges) {
    add({end, range.begin - end}, false);
    add(range, true);
  }
  add({end, size - end}, false);
  return segments;
}

void round_to_bf16(std::span<const float> from, std::span<std::uint16_t> to) {
  assert(from.size() == to.size());
  in_blocks(from.size(), [&](std::size_t begin, std::size_t n) {
    round_run(from.data() + begin, as_bf16(to) + begin, n);
  });
}
void widen_bf16(std::span<const std::uint16_t> from, std::span<float> to) {
  assert(from.size() == to.size());
  in_blocks(from.size(), [&](std::size_t begin, std::size_t n) {
    widen_run(as_bf16(from) + begin, to.data() + begin, n);
  });
}

}  // namespace isthmus::trainer
