#include "isthmus/outer_sync/protocol/rejection.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace isthmus::outer_sync::protocol {

MedianSquares median_of(std::span<const double> squares) {
  std::vector<double> positive;
  for (const auto value : squares) {
    if (value > 0) positive.push_back(value);
  }
  if (positive.size() < fewest_to_compare) return {};
  const auto middle = positive.begin() + static_cast<std::ptrdiff_t>((positive.size() - 1) / 2);
  std::nth_element(positive.begin(), middle, positive.end());
  return {.value = *middle, .exists = true};
}

std::vector<bool> kept(const RejectRule& rule, std::span<const double> squares) {
  std::vector<bool> out(squares.size(), true);
  const auto median = median_of(squares);
  if (rule.factor == 0 || !median.exists) return out;
  const double limit = (rule.factor * rule.factor) * median.value;
  std::vector<std::pair<double, std::size_t>> outliers;
  for (std::size_t m = 0; m < squares.size(); ++m) {
    if (squares[m] > limit || std::isinf(squares[m])) outliers.emplace_back(squares[m], m);
  }
  std::ranges::sort(outliers, std::greater<>());
  auto remaining = squares.size();
  for (const auto& [value, m] : outliers) {
    if (remaining <= rule.least) break;
    out[m] = false;
    --remaining;
  }
  return out;
}

}  // namespace isthmus::outer_sync::protocol
