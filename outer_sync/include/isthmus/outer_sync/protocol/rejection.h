#pragma once
// outer.reject: an owner leaves out contributions to a chunk that are far larger than the others. A function
// of the norms alone, so every member that has the norms can verify it.

#include <cstddef>
#include <span>
#include <vector>

namespace isthmus::outer_sync::protocol {

struct RejectRule {
  double factor = 0;      ///< times the median norm, more than 1; 0: rejects nothing
  std::size_t least = 1;  ///< number of contributions that always remain
};

/// With fewer contributions there are no outliers.
inline constexpr std::size_t fewest_to_compare = 3;

/// Median of the values above zero (contributions of zero say nothing about the others); of an even number,
/// the lower middle one. Empty if there are fewer than `fewest_to_compare`. `squares` may contain infinity,
/// but not NaN.
struct MedianSquares {
  double value = 0;
  bool exists = false;
};
[[nodiscard]] MedianSquares median_of(std::span<const double> squares);

/// By position: whether the result includes the contribution. `squares`: sums of squares of the decoded
/// contributions in member order, infinity if one does not decode, never NaN. Rejects infinite ones and those
/// above factor^2 times the median, the largest first, of equal ones the later, while more than `least`
/// remain. (factor * factor) * median is rounded to fp64 after each product.
[[nodiscard]] std::vector<bool> kept(const RejectRule& rule, std::span<const double> squares);

}  // namespace isthmus::outer_sync::protocol
