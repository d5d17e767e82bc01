#pragma once

#include <exception>
#include <string>

namespace isthmus::trainer {

/// libtorch and Gloo throw what derives from std::exception; the first line says what happened, the rest is a
/// stack.
[[nodiscard]] inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace isthmus::trainer
