#include "isthmus/trainer/schedule.h"

#include <algorithm>

namespace isthmus::trainer {
namespace {

constexpr double half_pi = 1.57079632679489661923;

/// Taylor polynomials by Horner's rule; with |a| <= pi/4 the first term left out is below 1e-17.
double sine(double a) {
  const double s = a * a;
  double sum = 0;
  for (int n = 15; n >= 3; n -= 2) sum = (1 + sum) * -s / (n * (n - 1));
  return a * (1 + sum);
}
double cosine(double a) {
  const double s = a * a;
  double sum = 0;
  for (int n = 16; n >= 2; n -= 2) sum = (1 + sum) * -s / (n * (n - 1));
  return 1 + sum;
}

double wsd(const InnerConfig& config, double step, double steps) {
  const double decay_steps = config.decay_fraction * steps;
  const double into_decay = step - (steps - decay_steps);
  if (into_decay <= 0) return 1;
  return 1 - (1 - config.min_lr_ratio) * (into_decay / decay_steps);
}

}  // namespace

double cos_pi(double x) {
  if (x > 0.5) return -cos_pi(1 - x);
  // Up to a quarter turn uses the cosine's own polynomial, beyond it the sine's of the complement.
  return x <= 0.25 ? cosine(2 * half_pi * x) : sine(2 * half_pi * (0.5 - x));
}

double learning_rate(const InnerConfig& config, std::uint64_t step, std::uint64_t steps) {
  const auto warmup = static_cast<std::uint64_t>(config.warmup_steps);
  if (step <= warmup) return config.lr * (static_cast<double>(step) / static_cast<double>(warmup));
  step = std::min(step, steps);
  if (config.schedule == "constant" || step <= warmup) return config.lr;
  if (config.schedule == "wsd")
    return config.lr * wsd(config, static_cast<double>(step), static_cast<double>(steps));
  const double x = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  const double r = config.min_lr_ratio;
  return config.lr * (r + (1 - r) * (0.5 * (1 + cos_pi(x))));
}

}  // namespace isthmus::trainer
