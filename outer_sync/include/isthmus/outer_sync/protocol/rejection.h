#pragma once
// outer.reject: contributions to a chunk that are so much larger than the others that its owner makes the
// result without them. A function of the norms alone, so that everybody who has these can check it.

#include <cstddef>
#include <span>
#include <vector>

namespace isthmus::outer_sync::protocol {

struct RejectRule {
  double factor = 0;      ///< times the median norm, more than 1; 0: nothing is left out
  std::size_t least = 1;  ///< so many contributions remain in any case
};

/// No contribution is an outlier among fewer.
inline constexpr std::size_t fewest_to_compare = 3;

/// The median of those above zero (a contribution of nothing says nothing of the others), of an even number
/// the lower one in the middle; nothing if there are fewer than `fewest_to_compare`. `squares` may be
/// infinite and not NaN.
struct MedianSquares {
  double value = 0;
  bool exists = false;
};
[[nodiscard]] MedianSquares median_of(std::span<const double> squares);

/// By position: whether the result is made with the contribution. `squares` are the sums of the squares of
/// what the contributions decode to, in member order, infinity for one that does not decode; none is NaN. Out
/// goes what is infinite or larger than factor^2 times the median, the largest first, of equal ones the
/// later, while more than `least` remain. (factor * factor) * median is rounded to fp64 after each product.
[[nodiscard]] std::vector<bool> kept(const RejectRule& rule, std::span<const double> squares);

}  // namespace isthmus::outer_sync::protocol
