#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace isthmus::app {

/// The texts with the separator between them.
[[nodiscard]] inline std::string joined(const std::vector<std::string>& texts, std::string_view separator) {
  std::string out;
  for (const auto& text : texts) {
    if (!out.empty()) out.append(separator);
    out.append(text);
  }
  return out;
}

}  // namespace isthmus::app
