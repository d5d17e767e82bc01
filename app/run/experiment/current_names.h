#pragma once
// Other names of keys and values that configs may have: those of earlier releases of Isthmus, and keys of
// torchft, MaxText and Hugging Face that mean the same. Everything after reading knows the current names
// alone.

#include <span>
#include <string>
#include <string_view>

#include "isthmus/base/config.h"

namespace isthmus::app {

struct KeyAlias {
  std::string_view alias, key;
};
[[nodiscard]] std::span<const KeyAlias> key_aliases();

/// The key that the name stands for, of the run or of a site ("sites.NAME.KEY"); other names are returned as
/// they are.
[[nodiscard]] std::string current_key(std::string_view name);

/// The source with current names. Throws Error(config), naming both places, if a key is given under two
/// names.
[[nodiscard]] config::Source with_current_names(const config::Source& source);

}  // namespace isthmus::app
