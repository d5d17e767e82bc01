#pragma once
// Formats numbers for log lines.

#include <cstdio>
#include <string>

namespace isthmus::outer_sync::protocol {

/// Three significant digits.
inline std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

}  // namespace isthmus::outer_sync::protocol
