#pragma once
// Notes that `isthmus config --explain` adds to the definition of a key: the unit of a plain number, and the
// reason for the default.

#include <span>
#include <string_view>

namespace isthmus::app {

struct KeyNote {
  std::string_view key, unit, why;
};

/// A note on every key, in the order of the keys.
[[nodiscard]] std::span<const KeyNote> key_notes();

}  // namespace isthmus::app
