#include "isthmus/outer_sync/methods/eager.h"

#include "isthmus/outer_sync/config.h"

namespace isthmus::outer_sync::methods {

void Ahead::move(Range range, std::span<const float> d, const quant::OuterStep& step) {
  for (std::size_t i = 0; i < range.size; ++i) {
    auto& a = parameters[range.begin + i];
    auto& b = velocity[range.begin + i];
    b = step.momentum * b + d[i];
    const float direction = step.nesterov ? d[i] + step.momentum * b : b;
    a = a - step.lr * direction;
  }
}

void make_eager(OuterConfig& config) {
  config.sync_delay = 0;
  config.merge = "alpha";
  config.merge_alpha = 0;
  config.optimizer.average_first = config.optimizer.average_last = 0;
}

}  // namespace isthmus::outer_sync::methods
