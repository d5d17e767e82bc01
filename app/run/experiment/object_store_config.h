#pragma once
// Config section `object_store`: where checkpoints and round logs are copied to.

#include <string>

#include "isthmus/base/config.h"
#include "isthmus/base/object_store.h"

namespace isthmus::app {

struct ObjectStoreConfig {
  std::string url, endpoint, region, credentials, ca;
  config::Rate rate;
  bool copies = true;
  void serialize(config::Archive& ar);
  /// Throws Error(config) if it cannot work.
  void check() const;
  [[nodiscard]] bool is_used() const { return !url.empty(); }
  /// Whether checkpoints and round logs are copied.
  [[nodiscard]] bool gets_copies() const { return is_used() && copies; }
  [[nodiscard]] ObjectStoreOptions options() const;
};

}  // namespace isthmus::app
