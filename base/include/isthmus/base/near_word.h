#pragma once
// Finds the name that a misspelt word probably means, for "did you mean" in messages.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace isthmus {

/// Letters to insert, remove or replace to turn one word into the other.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// The name nearest to the word: it begins with the word, or at most a third of its letters differ (two in a
/// short word). Empty if no name is near.
[[nodiscard]] std::string near_word(std::string_view word, std::span<const std::string> names);

}  // namespace isthmus
