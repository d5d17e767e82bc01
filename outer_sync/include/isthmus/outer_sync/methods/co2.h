#pragma once
// CO2 (arXiv 2401.16265): a round's communication has the whole next round's time, so no replica waits for
// it. The outer step is one round late; g is divided by a staleness penalty L and the momentum is clipped to
// +-phi, element by element:
//   v <- clip(mu v + g / L, -phi, phi);   theta <- theta - lr v;   local <- theta
// Here g is the mean of the outer gradients sent one round ago. L is a setting (outer.staleness_penalty), the
// same for all elements and rounds.

#include <cstddef>
#include <span>

#include "isthmus/quant/passes.h"

namespace isthmus::outer_sync::methods {

struct Co2 {
  float penalty = 1;  ///< L >= 1
  float clip = 0;     ///< phi; 0: no clipping
};

/// Replaces quant::decode_apply, with the same arguments and result; fp32, one rounding per operation.
[[nodiscard]] bool co2_apply(const quant::CodecSpec& spec, std::span<const std::byte> in,
                             const quant::OuterStep& step, const Co2& co2, std::span<float> theta,
                             std::span<float> velocity, std::span<float> local);

}  // namespace isthmus::outer_sync::methods
