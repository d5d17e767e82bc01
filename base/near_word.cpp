#include "isthmus/base/near_word.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace isthmus {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    auto diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const auto replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string near_word(std::string_view word, std::span<const std::string> names) {
  constexpr std::size_t longest = 64;  // an untrusted word must not cost seconds
  constexpr std::size_t shortest_beginning = 3;
  if (word.size() > longest) return {};
  const auto distance = [word](const std::string& name) {
    const bool begins = word.size() >= shortest_beginning && name.starts_with(word);
    return begins ? 1 : edit_distance(word, name);
  };
  const auto best = std::ranges::min_element(names, {}, distance);
  if (best == names.end() || distance(*best) > std::max<std::size_t>(2, word.size() / 3)) return {};
  return *best;
}

}  // namespace isthmus
