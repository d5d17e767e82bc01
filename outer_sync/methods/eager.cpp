#include "isthmus/outer_sync/methods/eager.h"

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

}  // namespace isthmus::outer_sync::methods
