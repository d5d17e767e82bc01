// The passes' kernels. A thread block iterates over tiles of 4096 elements, of which each thread holds
// sixteen in registers: every operand is read once and written once, codes are packed by shuffles, and shared
// memory is only for exchange between warps. The launches are at the end.
//
// Included like arithmetic-inl.h, and after it: by passes.cu, and by a test that runs the kernels' threads
// one after the other on the CPU.
//
// No include guard, on purpose.

// In this order.
#include "cuda/tiles-inl.h"

#include "cuda/block_kernels-inl.h"

#include "cuda/float_kernels-inl.h"

#include "cuda/topk_kernels-inl.h"

// ---- uses of decoded values ----

struct CopyTo {
  float* out;
  ISTHMUS_LANES void operator()(std::size_t begin, unsigned n, const Values& x) const {
    store(out + begin, n, x);
  }
};

struct AddTo {
  float weight;
  float* sum;
  ISTHMUS_LANES void operator()(std::size_t begin, unsigned n, const Values& x) const {
    using O = ScalarLanes;
    Values s;
    load(sum + begin, n, s);
    ISTHMUS_UNROLL
    for (unsigned i = 0; i < quads * quad; ++i) {
      auto& to = s[i / quad][i % quad];
      to = O::add(to, O::mul(weight, x[i / quad][i % quad]));
    }
    store(sum + begin, n, s);
  }
};

struct ApplyTo {
  OuterStep step;
  float* theta;
  float* velocity;
  float* local;  ///< null: none

  ISTHMUS_LANES bool carries() const { return local != nullptr && step.merge == Merge::carry; }
  ISTHMUS_LANES bool mixes() const {
    return local != nullptr && step.merge == Merge::mix && step.alpha != 0 && step.alpha != 1;
  }
  ISTHMUS_LANES bool copies() const {
    return local != nullptr && step.merge == Merge::mix && step.alpha == 0;
  }

  ISTHMUS_LANES void operator()(std::size_t begin, unsigned n, const Values& x) const {
    using O = ScalarLanes;
    Values p;
    Values v;
    Values l = {};
    load(theta + begin, n, p);
    load(velocity + begin, n, v);
    if (mixes() || carries()) load(local + begin, n, l);
    ISTHMUS_UNROLL
    for (unsigned i = 0; i < quads * quad; ++i) {
      const auto u = i / quad;
      const auto k = i % quad;
      const auto direction = step.nesterov ? outer_direction<true, O>(x[u][k], step.momentum, v[u][k])
                                           : outer_direction<false, O>(x[u][k], step.momentum, v[u][k]);
      const auto before = p[u][k];
      p[u][k] = O::sub(before, O::mul(step.lr, direction));
      l[u][k] = carries() ? O::add(l[u][k], O::sub(p[u][k], before))
                          : O::add(O::mul(step.alpha, l[u][k]), O::mul(O::sub(1, step.alpha), p[u][k]));
    }
    store(theta + begin, n, p);
    store(velocity + begin, n, v);
    if (mixes() || carries()) store(local + begin, n, l);
    if (copies()) store(local + begin, n, p);
  }
};

// ---- launches ----
// launch(kernel, arguments...) runs a kernel; the caller decides on how many thread blocks.

template <class Launch>
void launch_encode_as(Floats<CodecKind::fp32> /*format*/, const CodecSpec& /*spec*/, const Encoding& e,
                      unsigned long long* first_bad, const Launch& launch) {
  launch(encode_floats_kernel<CodecKind::fp32, false>, e, first_bad);
}
template <class Launch>
void launch_encode_as(Floats<CodecKind::bf16> /*format*/, const CodecSpec& spec, const Encoding& e,
                      unsigned long long* first_bad, const Launch& launch) {
  const bool drawn = spec.rounding == Rounding::stochastic;
  launch(drawn ? encode_floats_kernel<CodecKind::bf16, true> : encode_floats_kernel<CodecKind::bf16, false>,
         e, first_bad);
}
template <class Launch>
void launch_encode_as(Topk /*format*/, const CodecSpec& spec, const Encoding& e,
                      unsigned long long* first_bad, const Launch& launch) {
  const bool drawn = spec.rounding == Rounding::stochastic;
  launch(drawn ? encode_topk_kernel<true> : encode_topk_kernel<false>, spec, e, first_bad);
}
template <class T, class Launch>
void launch_encode_as(T /*format*/, const CodecSpec& spec, const Encoding& e, unsigned long long* first_bad,
                      const Launch& launch) {
  constexpr bool is_sign = T::bits == 1;
  if (spec.rounding == Rounding::stochastic)
    return launch(encode_blocks_kernel<T, true, false>, spec, e, first_bad);
  launch(encode_blocks_kernel<T, false, is_sign>, spec, e, first_bad);
}

template <class Launch>
void launch_encode(const CodecSpec& spec, const Encoding& e, unsigned long long* first_bad,
                   const Launch& launch) {
  with_format(spec.kind, [&](auto format) { launch_encode_as(format, spec, e, first_bad, launch); });
}

template <CodecKind kind, class Use, class Launch>
void launch_decode_as(Floats<kind> /*format*/, const CodecSpec& /*spec*/, const std::byte* in,
                      std::size_t elements, const Use& use, const Launch& launch) {
  launch(decode_floats_kernel<kind, Use>, in, elements, use);
}
template <class Use, class Launch>
void launch_decode_as(Topk /*format*/, const CodecSpec& spec, const std::byte* in, std::size_t elements,
                      const Use& use, const Launch& launch) {
  launch(decode_topk_kernel<Use>, spec, in, elements, use);
}
template <class T, class Use, class Launch>
void launch_decode_as(T /*format*/, const CodecSpec& spec, const std::byte* in, std::size_t elements,
                      const Use& use, const Launch& launch) {
  launch(decode_blocks_kernel<T, Use>, spec, in, elements, use);
}

/// `use`: CopyTo, AddTo or ApplyTo.
template <class Use, class Launch>
void launch_decode(const CodecSpec& spec, const std::byte* in, std::size_t elements, const Use& use,
                   const Launch& launch) {
  with_format(spec.kind, [&](auto format) { launch_decode_as(format, spec, in, elements, use, launch); });
}
