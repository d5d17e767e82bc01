#pragma once
// Changes of settings that operators have made since the run began. Agreed state, like the rounds: a view
// begins with it (docs/protocol.md, Steering).

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/config.h"

namespace isthmus::outer_sync::protocol {

/// From the step after `step` on, these keys have these values, written as in a config file.
struct Change {
  std::uint64_t step = 0;  ///< agreed step
  config::SharedItems items;
  friend bool operator==(const Change&, const Change&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step, items);
  }
};

struct Settings {
  static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();
  std::vector<Change> changes;  ///< in the order of their steps
  /// All trainers wait after this step until a view brings another value.
  std::uint64_t pause_after = never;
  friend bool operator==(const Settings&, const Settings&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(changes, pause_after);
  }

  static constexpr std::size_t max_changes = 256, max_items = 32, longest_text = 256;
  /// Total characters: a member that comes back sends them with its hello.
  static constexpr std::size_t max_text_bytes = 16 * 1024;
  /// Whether settings received from the network are valid.
  [[nodiscard]] bool sound() const;
  /// Number of changes that are the same at the beginning of both lists.
  [[nodiscard]] std::size_t common_with(const Settings& other) const;
};

/// The value of a key at step `step`; empty if it was never changed.
[[nodiscard]] std::string changed_value(const Settings& settings, const std::string& key, std::uint64_t step);

}  // namespace isthmus::outer_sync::protocol
