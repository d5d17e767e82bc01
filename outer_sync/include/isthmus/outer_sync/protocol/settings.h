#pragma once
// What has been changed since the run began, by those who run it: part of the agreed state, like the rounds.
// A view begins with it (docs/protocol.md, Steering).

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/config.h"

namespace isthmus::outer_sync::protocol {

/// From the step after `step` on these keys have these values, as they are written in a config file.
struct Change {
  std::uint64_t step = 0;  ///< agreed
  config::SharedItems items;
  friend bool operator==(const Change&, const Change&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step, items);
  }
};

struct Settings {
  static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();
  std::vector<Change> changes;  ///< as they were agreed; their steps never fall
  /// All who train wait when this step is done, until a view begins that says otherwise.
  std::uint64_t pause_after = never;
  friend bool operator==(const Settings&, const Settings&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(changes, pause_after);
  }

  static constexpr std::size_t max_changes = 256, max_items = 32, longest_text = 256;
  /// Characters in all of them: whoever comes back says them with its hello.
  static constexpr std::size_t max_text_bytes = 16 * 1024;
  /// Whether this can be: what comes from a network need not.
  [[nodiscard]] bool sound() const;
  /// How many of the changes are the same as the first ones of `other`.
  [[nodiscard]] std::size_t common_with(const Settings& other) const;
};

/// The value of a key after so many steps; empty where it was never changed.
[[nodiscard]] std::string changed_value(const Settings& settings, const std::string& key, std::uint64_t step);

}  // namespace isthmus::outer_sync::protocol
