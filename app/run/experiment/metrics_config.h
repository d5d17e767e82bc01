#pragma once
// Config section `metrics`: where a process serves metrics to Prometheus.

#include <string>
#include <string_view>

#include "isthmus/base/config.h"
#include "isthmus/outer_sync/core/address.h"

namespace isthmus::app {

struct MetricsConfig {
  std::string listen;
  void serialize(config::Archive& ar);
  /// Throws Error(config) unless `listen` is empty or an address.
  void check() const;
  /// The address of a nonempty `listen`; a port alone means loopback.
  [[nodiscard]] outer_sync::Address address() const;
};

/// The address in a key of a page: ADDRESS:PORT, or a port alone for loopback. Throws Error(config) naming
/// the key.
[[nodiscard]] outer_sync::Address page_address(const std::string& listen, std::string_view key);

}  // namespace isthmus::app
