// The passes on a CPU, for any number of lanes up to a row. A tile of values stays in the first-level cache
// while each step of the format is one loop over it. Included like arithmetic-inl.h, and after it. Lanes are
// the instruction set's operations; ScalarLanes handles the tails. The formats are in the headers below;
// here is the choice among them, and the use of decoded tiles.
//
// No include guard, on purpose.

#include "gather-inl.h"

// after it
#include "blocks-inl.h"
#include "floats-inl.h"
#include "topk-inl.h"

// ---- all formats ----

std::size_t encode_as(Floats<CodecKind::fp32> /*format*/, const CodecSpec& /*spec*/, const Encoding& e) {
  return encode_fp32(e);
}
std::size_t encode_as(Floats<CodecKind::bf16> /*format*/, const CodecSpec& spec, const Encoding& e) {
  return spec.rounding == Rounding::stochastic ? encode_bf16<true>(e) : encode_bf16<false>(e);
}
std::size_t encode_as(Topk /*format*/, const CodecSpec& spec, const Encoding& e) {
  return spec.rounding == Rounding::stochastic ? encode_topk<true>(spec, e) : encode_topk<false>(spec, e);
}
template <class T>
std::size_t encode_as(T /*format*/, const CodecSpec& spec, const Encoding& e) {
  return encode_blocks<T>(spec, e);
}

std::size_t encode(const CodecSpec& spec, const Encoding& e) {
  return with_format(spec.kind, [&](auto format) { return encode_as(format, spec, e); });
}

template <class Use>
void decode_as(Floats<CodecKind::fp32> /*format*/, const CodecSpec& /*spec*/, const std::byte* in,
               std::size_t elements, const Use& use) {
  decode_fp32(in, elements, use);
}
template <class Use>
void decode_as(Floats<CodecKind::bf16> /*format*/, const CodecSpec& /*spec*/, const std::byte* in,
               std::size_t elements, const Use& use) {
  decode_bf16(in, elements, use);
}
template <class Use>
void decode_as(Topk /*format*/, const CodecSpec& spec, const std::byte* in, std::size_t elements,
               const Use& use) {
  decode_topk(spec, in, elements, use);
}
template <class T, class Use>
void decode_as(T /*format*/, const CodecSpec& spec, const std::byte* in, std::size_t elements,
               const Use& use) {
  decode_blocks<T>(spec, in, elements, use);
}

/// Decodes tile by tile; use(first element, number of elements, values) gets each tile while it is in the
/// cache.
template <class Use>
void decode_tiles(const CodecSpec& spec, const std::byte* in, std::size_t elements, const Use& use) {
  with_format(spec.kind, [&](auto format) { decode_as(format, spec, in, elements, use); });
}

struct Copy {
  float* out;
  void operator()(std::size_t begin, std::size_t n, const float* v) const {
    std::memcpy(out + begin, v, n * sizeof(float));
  }
};

struct Accumulate {
  float weight;
  float* sum;
  template <class O>
  ISTHMUS_LANES void add(std::size_t& i, std::size_t n, const float* v, float* to) const {
    for (; i + O::lanes <= n; i += O::lanes)
      O::store(to + i, O::add(O::load(to + i), O::mul(O::set(weight), O::load(v + i))));
  }
  void operator()(std::size_t begin, std::size_t n, const float* v) const {
    std::size_t i = 0;
    add<Lanes>(i, n, v, sum + begin);
    add<ScalarLanes>(i, n, v, sum + begin);
  }
};

enum class Local : std::uint8_t { none, copy, mix, carry };

template <bool nesterov, Local merge>
struct Apply {
  float lr, momentum, alpha;
  float* theta;
  float* velocity;
  float* local;
  template <class O>
  ISTHMUS_LANES void step(std::size_t& i, std::size_t n, std::size_t begin, const float* g) const {
    const auto mu = O::set(momentum);
    const auto rate = O::set(lr);
    for (; i + O::lanes <= n; i += O::lanes) {
      const auto at = begin + i;
      auto v = O::load(velocity + at);
      const auto direction = outer_direction<nesterov, O>(O::load(g + i), mu, v);
      O::store(velocity + at, v);
      const auto before = O::load(theta + at);
      const auto moved = O::sub(before, O::mul(rate, direction));
      O::store(theta + at, moved);
      if constexpr (merge == Local::copy) O::store(local + at, moved);
      if constexpr (merge == Local::carry)
        O::store(local + at, O::add(O::load(local + at), O::sub(moved, before)));
      if constexpr (merge == Local::mix) {
        const auto kept = O::mul(O::set(alpha), O::load(local + at));
        O::store(local + at, O::add(kept, O::mul(O::set(1 - alpha), moved)));
      }
    }
  }
  void operator()(std::size_t begin, std::size_t n, const float* g) const {
    std::size_t i = 0;
    step<Lanes>(i, n, begin, g);
    step<ScalarLanes>(i, n, begin, g);
  }
};

void decode(const CodecSpec& spec, const std::byte* in, float* out, std::size_t elements) {
  decode_tiles(spec, in, elements, Copy{out});
}

void accumulate(const CodecSpec& spec, const std::byte* in, float weight, float* sum, std::size_t elements) {
  decode_tiles(spec, in, elements, Accumulate{weight, sum});
}

template <bool nesterov>
void apply_and_merge(const CodecSpec& spec, const std::byte* in, const OuterStep& s, float* theta,
                     float* velocity, float* local, std::size_t elements) {
  const auto run = [&]<Local merge>(std::integral_constant<Local, merge>) {
    decode_tiles(spec, in, elements,
                 Apply<nesterov, merge>{s.lr, s.momentum, s.alpha, theta, velocity, local});
  };
  if (local == nullptr) return run(std::integral_constant<Local, Local::none>());
  if (s.merge == Merge::carry) return run(std::integral_constant<Local, Local::carry>());
  if (s.alpha == 1) return run(std::integral_constant<Local, Local::none>());
  if (s.alpha == 0) return run(std::integral_constant<Local, Local::copy>());
  run(std::integral_constant<Local, Local::mix>());
}

void apply(const CodecSpec& spec, const std::byte* in, const OuterStep& step, float* theta, float* velocity,
           float* local, std::size_t elements) {
  if (step.nesterov) return apply_and_merge<true>(spec, in, step, theta, velocity, local, elements);
  apply_and_merge<false>(spec, in, step, theta, velocity, local, elements);
}

Passes passes_of(std::string_view target) {
  return {target, encode, decode, accumulate, apply, products, largest_magnitude};
}
