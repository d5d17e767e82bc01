#pragma once
// Interface to the inner optimizer's moments: m and v of AdamW (arXiv 1711.05101). They are not agreed state,
// but a joining replica may copy a member's moments so that it need not start with zeros.

#include <cstdint>
#include <span>

#include "isthmus/outer_sync/core/layout.h"

namespace isthmus::outer_sync {

class InnerMoments {
 public:
  virtual ~InnerMoments() = default;
  /// Inner steps behind the moments; bias correction uses this number.
  [[nodiscard]] virtual std::uint64_t steps() const = 0;
  /// In host memory; valid until the next call to the replica.
  [[nodiscard]] virtual std::span<const float> first_moment(Range range) = 0;
  [[nodiscard]] virtual std::span<const float> second_moment(Range range) = 0;
  /// Replaces both moments in a range; the spans are as long as the range.
  virtual void set_moments(Range range, std::span<const float> first, std::span<const float> second) = 0;
  virtual void set_steps(std::uint64_t steps) = 0;
};

}  // namespace isthmus::outer_sync
