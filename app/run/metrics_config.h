#pragma once
// Config keys of `metrics`: what a process serves to Prometheus, and where.

#include <string>

#include "isthmus/base/config.h"
#include "isthmus/outer_sync/core/address.h"

namespace isthmus::app {

struct MetricsConfig {
  std::string listen;
  void serialize(config::Archive& ar);
  /// Throws Error(config) unless `listen` is empty or an address.
  void check() const;
  /// Of a `listen` that is not empty; a port alone is one of loopback.
  [[nodiscard]] outer_sync::Address address() const;
};

}  // namespace isthmus::app
