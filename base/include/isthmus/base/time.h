#pragma once
// Durations as numbers.

#include <chrono>

namespace isthmus {

template <class Rep, class Period>
[[nodiscard]] constexpr double seconds(std::chrono::duration<Rep, Period> duration) {
  return std::chrono::duration<double>(duration).count();
}

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return seconds(std::chrono::steady_clock::now() - begin);
}

}  // namespace isthmus
