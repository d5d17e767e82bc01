#include "isthmus/outer_sync/methods/co2.h"

#include <algorithm>

namespace isthmus::outer_sync::methods {

bool co2_apply(const quant::CodecSpec& spec, std::span<const std::byte> in, const quant::OuterStep& step,
               const Co2& co2, std::span<float> theta, std::span<float> velocity, std::span<float> local) {
  if (!quant::valid(spec, in, theta.size())) return false;
  for (auto& v : velocity) v *= step.momentum;
  if (!quant::decode_accumulate(spec, in, 1 / co2.penalty, velocity)) return false;
  for (std::size_t i = 0; i < theta.size(); ++i) {
    if (co2.clip > 0) velocity[i] = std::clamp(velocity[i], -co2.clip, co2.clip);
    theta[i] = theta[i] - step.lr * velocity[i];
  }
  if (step.alpha == 1) return true;
  for (std::size_t i = 0; i < theta.size(); ++i)
    local[i] = step.alpha == 0 ? theta[i] : step.alpha * local[i] + (1 - step.alpha) * theta[i];
  return true;
}

}  // namespace isthmus::outer_sync::methods
