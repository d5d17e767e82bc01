#pragma once
// Figures of an outer step, computed only from the momentum v before it and the round's mean outer gradient
// g. With c = <v, g> / |g|^2, DiLoCo's step (arXiv 2311.08105, Algorithm 1) moves along g by A |g| lr, where
// the gain A is 1 + mu + mu^2 c (without Nesterov 1 + mu c). If outer gradients k rounds apart correlate as
// rho^k, then c = rho + mu rho^2 + ... = rho / (1 - mu rho) on average, so rho = c / (1 + mu c).

#include <optional>

#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/quant/passes.h"

namespace isthmus::outer_sync {

/// The same on all replicas. For display only; nothing in a run depends on them.
struct OuterStepFigures {
  double norm = 0;         ///< |g|
  double gain = 0;         ///< A, limited to +-protocol::max_abs_gain; 1 if the round only averaged
  double correlation = 0;  ///< rho, limited to [-1, 1]
  bool has_momentum = false;
  friend bool operator==(const OuterStepFigures&, const OuterStepFigures&) = default;
};

/// `products`: those of v (x) and g (y). If mu is 0, v is the previous round's g and rho is their cosine.
/// Returns nullopt if g is 0 or not finite.
[[nodiscard]] std::optional<OuterStepFigures> figures_of(const quant::Products& products,
                                                         const quant::OuterStep& rule);

/// Figures of a fragment's newest checked round (protocol/state_digests.h).
struct FragmentFigures {
  protocol::Round round = 0;
  std::optional<OuterStepFigures> step = {};
  // |local - global| on this replica:
  std::optional<double> spread_at_send = {};   ///< before its contribution was encoded
  std::optional<double> spread_at_apply = {};  ///< after the result was applied
  friend bool operator==(const FragmentFigures&, const FragmentFigures&) = default;
};

}  // namespace isthmus::outer_sync
