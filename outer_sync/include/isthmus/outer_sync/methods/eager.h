#pragma once
// Eager updates (arXiv 2502.12996): a round's communication has the whole next round's time. Meanwhile a
// replica continues from where its own new outer gradient and the others' previous ones lead. With x_m,t
// replica m's outer gradient of round t and x_t the mean of all M, it starts its next round with
//   g_m,t = x_m,t / M + (x_t-1 - x_m,t-1 / M)          instead of x_t
// The outer step (SGD with momentum) is linear, so the replica's parameters are the global ones, which get
// x_t-1 one round late, plus its eager correction a, kept here:
//   d = (x_m,t - x_m,t-1) / M;   b <- mu b + d;   a <- a - lr (d + mu b)   (Nesterov; otherwise a - lr b)
//   local <- theta + a;   x_m,t+1 = theta + a - local
// theta is agreed; a and b are each replica's own.

#include <span>

#include "isthmus/base/aligned.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/quant/passes.h"

namespace isthmus::outer_sync::methods {

/// One replica's eager correction; flat, whole buffer.
class Ahead {
 public:
  explicit Ahead(std::size_t elements) : parameters(elements, 0.0F), velocity(elements, 0.0F) {}
  /// Advances the correction of these elements by d; `step` gives lr, mu and the form.
  void move(Range range, std::span<const float> d, const quant::OuterStep& step);

  AlignedVector<float> parameters, velocity;  ///< a and b
};

}  // namespace isthmus::outer_sync::methods
