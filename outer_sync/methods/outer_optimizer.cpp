#include "isthmus/outer_sync/methods/outer_optimizer.h"

#include <algorithm>
#include <cassert>
#include <cstddef>

namespace isthmus::outer_sync {

void OuterOptimizer::step(std::span<const float> gradient, std::span<float> theta,
                          std::span<float> velocity) const {
  assert(gradient.size() == theta.size() && theta.size() == velocity.size());
  for (std::size_t i = 0; i < theta.size(); ++i) {
    const float g = gradient[i];
    const float v = momentum * velocity[i] + g;
    velocity[i] = v;
    theta[i] -= lr * (nesterov ? g + momentum * v : v);
  }
}

void merge(float alpha, std::span<const float> global, std::span<float> local) {
  assert(global.size() == local.size());
  if (alpha == 0) {
    std::ranges::copy(global, local.begin());
    return;
  }
  if (alpha == 1) return;  // not 1 local + 0 global: that makes +0 of -0, and NaN where global is infinite
  const float beta = 1 - alpha;
  for (std::size_t i = 0; i < local.size(); ++i) local[i] = alpha * local[i] + beta * global[i];
}

}  // namespace isthmus::outer_sync
