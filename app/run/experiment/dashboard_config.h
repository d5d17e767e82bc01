#pragma once
// Config section `dashboard`: where the coordinator serves the page that shows the run in a browser.

#include <string>

#include "isthmus/base/config.h"
#include "isthmus/outer_sync/core/address.h"

namespace isthmus::app {

struct DashboardConfig {
  std::string listen;
  void serialize(config::Archive& ar);
  /// Throws Error(config) unless `listen` is empty or an address.
  void check() const;
  /// The address of a nonempty `listen`; a port alone means loopback.
  [[nodiscard]] outer_sync::Address address() const;
};

}  // namespace isthmus::app
