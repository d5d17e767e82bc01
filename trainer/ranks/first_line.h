#pragma once

#include <exception>
#include <string>

namespace isthmus::trainer {

/// The first line of an exception of libtorch or Gloo says what happened; the rest is a stack trace.
[[nodiscard]] inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace isthmus::trainer
