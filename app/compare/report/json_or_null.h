#pragma once
// Values of a report that may be unknown.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace isthmus::app {

template <class T>
nlohmann::ordered_json json_or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

/// Null for an empty text.
inline nlohmann::ordered_json json_or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
}

}  // namespace isthmus::app
