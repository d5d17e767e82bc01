#include "isthmus/trainer/loss_watch.h"

#include <algorithm>
#include <cmath>

namespace isthmus::trainer {

std::optional<LossSpike> LossWatch::add(double loss) {
  const double above = loss - mean_;
  const double deviation = std::sqrt(variance_);
  const bool high = steps_ >= first_steps && above > spike_deviations * deviation && above > min_rise * mean_;
  if (high) {
    const bool begins = calm_ >= calm_steps;
    calm_ = 0;
    if (!begins) return std::nullopt;
    return LossSpike{loss, mean_, above / std::max(deviation, 1e-12)};
  }
  ++calm_;
  ++steps_;
  // A plain mean for the first 1 / weight steps.
  const double part = std::max(weight, 1.0 / static_cast<double>(steps_));
  mean_ += part * above;
  variance_ = (1 - part) * (variance_ + part * above * above);
  return std::nullopt;
}

}  // namespace isthmus::trainer
