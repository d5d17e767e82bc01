#include "isthmus/outer_sync/engine/step_figures.h"

#include <algorithm>
#include <cmath>

#include "isthmus/outer_sync/protocol/messages/heartbeats.h"

namespace isthmus::outer_sync {

std::optional<OuterStepFigures> figures_of(const quant::Products& products, const quant::OuterStep& rule) {
  const auto& [vv, vg, gg] = products;
  if (!(gg > 0) || !std::isfinite(vv + gg)) return std::nullopt;
  const double mu = rule.momentum;
  const double c = vg / gg;
  OuterStepFigures out{.norm = std::sqrt(gg), .has_momentum = mu > 0};
  const double gain = rule.nesterov ? 1 + mu + mu * mu * c : 1 + mu * c;
  out.gain = std::clamp(gain, -protocol::max_abs_gain, protocol::max_abs_gain);
  double rho = -1;
  if (mu == 0) {
    rho = vv > 0 ? vg / (std::sqrt(vv) * out.norm) : 0;
  } else if (c > -1 / (1 + mu)) {  // otherwise rho would be -1 or less, or at its pole
    rho = c / (1 + mu * c);
  }
  out.correlation = std::clamp(rho, -1.0, 1.0);
  return out;
}

}  // namespace isthmus::outer_sync
