#include "isthmus/outer_sync/protocol/settings.h"

#include <algorithm>

namespace isthmus::outer_sync::protocol {

bool Settings::sound() const {
  const auto fits = [](const auto& item) {
    return !item.first.empty() && item.first.size() <= longest_text && item.second.size() <= longest_text;
  };
  std::uint64_t last = 0;
  std::size_t text = 0;
  for (const auto& change : changes) {
    if (change.step < last || change.step == never || change.items.empty() ||
        change.items.size() > max_items || !std::ranges::all_of(change.items, fits))
      return false;
    last = change.step;
    for (const auto& [key, value] : change.items) text += key.size() + value.size();
  }
  return changes.size() <= max_changes && text <= max_text_bytes;
}

std::size_t Settings::common_with(const Settings& other) const {
  const auto differs = std::ranges::mismatch(changes, other.changes);
  return static_cast<std::size_t>(differs.in1 - changes.begin());
}

std::string changed_value(const Settings& settings, const std::string& key, std::uint64_t step) {
  std::string value;
  for (const auto& change : settings.changes) {
    if (change.step >= step) continue;
    for (const auto& [changed, to] : change.items) {
      if (changed == key) value = to;
    }
  }
  return value;
}

}  // namespace isthmus::outer_sync::protocol
