#pragma once
// AdamW (Loshchilov and Hutter, arXiv 1711.05101, Algorithm 2) in one pass over flat buffers.
//
// Exact arithmetic: every operation is fp32 with one rounding (+, -, *, /, square root), in the order written
// below, without fused multiply-add, so all CPUs and GPUs give the same bits: during synchronous warm-up the
// result is agreed state. With g the gradient, s the clip scale, and the step's constants computed in double
// and rounded once:
//   g' = s g
//   m  = beta1 m + (1 - beta1) g'
//   v  = beta2 v + (1 - beta2) (g' g')
//   p  = keep p                                keep = 1 - lr weight_decay, in decay ranges only
//   p  = p - rate (m / (sqrt(v scale_v) + eps))     rate = lr / (1 - beta1^t), scale_v = 1 / (1 - beta2^t)

#include <cstdint>
#include <span>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/trainer/config.h"

namespace isthmus::trainer {

/// Constants of one step, fp32.
struct AdamWStep {
  float clip_scale = 1;
  float beta1 = 0, one_minus_beta1 = 0;
  float beta2 = 0, one_minus_beta2 = 0;
  float rate = 0, scale_v = 1, eps = 0;
  float keep = 1;
};

/// beta^t by repeated multiplication in double (std::pow's last bit depends on the C library).
class BiasCorrection {
 public:
  /// State after `steps` steps.
  BiasCorrection(const InnerConfig& config, std::uint64_t steps);
  /// Constants of the next step.
  [[nodiscard]] AdamWStep next(const InnerConfig& config, double lr, float clip_scale);

 private:
  double beta1_power_ = 1, beta2_power_ = 1;
};

/// 2-norm of a gradient. Squares are added in double, in 16 interleaved sums per block of 4096 elements,
/// which are added in order, then the blocks in order. The order depends only on the length, not on threads
/// or device.
[[nodiscard]] double gradient_norm(std::span<const float> gradient);
/// The same for bf16 bits.
[[nodiscard]] double gradient_norm(std::span<const std::uint16_t> gradient);

/// 1, or clip / norm if the norm exceeds a positive clip.
[[nodiscard]] float clip_scale(double norm, double clip);

/// Spans of equal length. `twin` is empty, or receives the new parameters rounded to bf16 (to nearest, ties
/// to even). adamw() uses all threads.
struct AdamWSpans {
  std::span<float> parameters;
  std::span<float> first_moment, second_moment;
  std::span<std::uint16_t> twin;
};
void adamw(const AdamWStep& step, bool decay, std::span<const float> gradient, const AdamWSpans& state);
void adamw(const AdamWStep& step, bool decay, std::span<const std::uint16_t> gradient_bf16,
           const AdamWSpans& state);

/// A range in which either all elements decay or none do.
struct DecaySegment {
  outer_sync::Range range;
  bool decay = false;
};
/// Divides the whole buffer [0, size) into segments, in order, by its decay ranges (ascending).
[[nodiscard]] std::vector<DecaySegment> decay_segments(std::span<const outer_sync::Range> decay_ranges,
                                                       std::uint64_t size);

/// bf16 with round to nearest, ties to even.
void round_to_bf16(std::span<const float> from, std::span<std::uint16_t> to);
void widen_bf16(std::span<const std::uint16_t> from, std::span<float> to);

}  // namespace isthmus::trainer
