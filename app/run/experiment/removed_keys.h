#pragma once
// Keys of earlier releases. Configs of old runs, which have every key, are still read if such a key has its
// default; any other value is an error that names the replacement.

#include <string>
#include <string_view>

#include "isthmus/base/config.h"

namespace isthmus::app {

struct RemovedKey {
  std::string_view key, was_default, now;  ///< `now`: what to write instead
};

/// Null unless the key, of the run or of a site, was removed.
[[nodiscard]] const RemovedKey* removed_key(std::string_view key);
[[nodiscard]] std::string message_of(const RemovedKey& removed);

/// The source without removed keys. Throws Error(config) naming the place if one has another value than its
/// default.
[[nodiscard]] config::Source without_removed_keys(const config::Source& source);

}  // namespace isthmus::app
