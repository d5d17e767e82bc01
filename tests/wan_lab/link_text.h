// Links in the forwarder's commands and answers.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "link.h"

namespace isthmus::wan_lab {

/// Throws std::invalid_argument for anything else.
template <typename T>
T number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw std::invalid_argument(fmt::format("'{}' is not a number or out of range", text));
  }
  return value;
}

/// The settings with the KEY=VALUE of the words. Throws std::invalid_argument naming a wrong one.
LinkSettings changed(LinkSettings settings, std::istringstream& words);

/// Settings and counters as KEY=VALUE.
std::string link_text(const Link& link, Nanoseconds now);

}  // namespace isthmus::wan_lab
