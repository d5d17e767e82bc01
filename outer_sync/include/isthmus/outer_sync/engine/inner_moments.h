#pragma once
// The inner optimizer's moments as the outer loop sees them: no agreed state, but what a newcomer may take
// from a member besides, so that it need not begin with zeros. AdamW's (arXiv 1711.05101) m and v.

#include <cstdint>
#include <span>

#include "isthmus/outer_sync/core/layout.h"

namespace isthmus::outer_sync {

class InnerMoments {
 public:
  virtual ~InnerMoments() = default;
  /// Inner steps behind the moments, which bias correction counts.
  [[nodiscard]] virtual std::uint64_t steps() const = 0;
  /// In host memory; valid until the next call of anything of the replica.
  [[nodiscard]] virtual std::span<const float> first_moment(Range range) = 0;
  [[nodiscard]] virtual std::span<const float> second_moment(Range range) = 0;
  /// Replaces both in a range; they are as long as it.
  virtual void set_moments(Range range, std::span<const float> first, std::span<const float> second) = 0;
  virtual void set_steps(std::uint64_t steps) = 0;
};

}  // namespace isthmus::outer_sync
