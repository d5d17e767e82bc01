#pragma once
// The outer step and the merge, on agreed state: fp32, one rounding per written operation, elements
// independent.

#include <span>

namespace isthmus::outer_sync {

/// SGD with momentum mu. DiLoCo (arXiv 2311.08105, Algorithm 1) uses the Nesterov form.
struct OuterOptimizer {
  float lr = 0.7F;
  float momentum = 0.9F;
  bool nesterov = true;

  /// v <- mu v + g;  theta <- theta - lr (g + mu v)   (Nesterov; otherwise theta <- theta - lr v).
  /// g: mean outer gradient, theta: global parameters, v: momentum; equal lengths.
  void step(std::span<const float> gradient, std::span<float> theta, std::span<float> velocity) const;
};

/// local <- alpha local + (1 - alpha) global (Streaming DiLoCo, Algorithm 2). alpha 0 copies
/// and alpha 1 keeps, bit for bit.
void merge(float alpha, std::span<const float> global, std::span<float> local);

}  // namespace isthmus::outer_sync
