#pragma once
// Config values as text, and untrusted texts in messages. Private to base.

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "isthmus/base/config.h"

namespace isthmus::config {

[[noreturn]] void fail(const std::string& message);  ///< throws Error(config)

/// The text in YAML, so that it reads back as the same text.
[[nodiscard]] std::string yaml_string(std::string_view text);
/// An untrusted text for a message: one line, of bounded length.
[[nodiscard]] std::string shown(std::string_view text);
/// The shortest digits that read back as the same number.
[[nodiscard]] std::string shortest(double value);

template <class Items, class ToText>
std::string joined(const Items& items, const ToText& to_text) {
  std::string out;
  for (const auto& item : items) {
    if (!out.empty()) out += ", ";
    out += to_text(item);
  }
  return out;
}

/// Canonical text of a value: equal values have one text.
[[nodiscard]] std::string text_of(bool value);
[[nodiscard]] std::string text_of(std::int64_t value);
[[nodiscard]] std::string text_of(double value);
[[nodiscard]] std::string text_of(NumberOrAuto value);
[[nodiscard]] std::string text_of(const std::string& value);
[[nodiscard]] std::string text_of(const std::vector<std::int64_t>& value);
[[nodiscard]] std::string text_of(Duration value);
[[nodiscard]] std::string text_of(Size value);
[[nodiscard]] std::string text_of(Rate value);
[[nodiscard]] std::string text_of(const Stepped& value);

/// Parses the whole text as one value. Otherwise returns false, and `value` is unspecified.
[[nodiscard]] bool parse(std::string_view text, bool& value);
[[nodiscard]] bool parse(std::string_view text, std::int64_t& value);
[[nodiscard]] bool parse(std::string_view text, double& value);
[[nodiscard]] bool parse(std::string_view text, NumberOrAuto& value);
[[nodiscard]] bool parse(std::string_view text, std::string& value);
[[nodiscard]] bool parse(std::string_view text, Duration& value);
[[nodiscard]] bool parse(std::string_view text, Size& value);
[[nodiscard]] bool parse(std::string_view text, Rate& value);

}  // namespace isthmus::config
