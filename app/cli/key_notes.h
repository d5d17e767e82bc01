#pragma once
// What `isthmus config explain` says of a key beside its definition: the unit of numbers that have no unit of
// their own, and why the default is what it is.

#include <span>
#include <string_view>

namespace isthmus::app {

struct KeyNote {
  std::string_view key, unit, why;
};

/// Of keys whose default does not explain itself.
[[nodiscard]] std::span<const KeyNote> key_notes();

}  // namespace isthmus::app
