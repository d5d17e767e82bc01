#pragma once
// Eager updates (arXiv 2502.12996): a round's communication has the whole next round's time, and meanwhile a
// replica goes on from where its own fresh outer gradient and the others' of the round before lead. With
// x_m,t replica m's outer gradient of round t and x_t the mean of all M:
//   g_m,t = x_m,t / M + (x_t-1 - x_m,t-1 / M)          in place of x_t, for the replica's own next start
// The outer step (SGD with momentum) is linear, so such a replica's parameters are the agreed global ones,
// which take x_t-1 a round late, and the response to what it is ahead by, kept here:
//   d = (x_m,t - x_m,t-1) / M;   b <- mu b + d;   a <- a - lr (d + mu b)   (Nesterov; otherwise a - lr b)
//   local <- theta + a;   x_m,t+1 = theta + a - local
// theta is agreed, a and b are each replica's own.

#include <span>

#include "isthmus/base/aligned.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/quant/passes.h"

namespace isthmus::outer_sync::methods {

/// What one replica is ahead of the global parameters by; flat, whole buffer.
class Ahead {
 public:
  explicit Ahead(std::size_t elements) : parameters(elements, 0.0F), velocity(elements, 0.0F) {}
  /// Takes d of these elements; `step` gives lr, mu and the form.
  void move(Range range, std::span<const float> d, const quant::OuterStep& step);

  AlignedVector<float> parameters, velocity;  ///< a and b
};

}  // namespace isthmus::outer_sync::methods
