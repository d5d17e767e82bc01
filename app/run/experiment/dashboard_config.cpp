#include "run/experiment/dashboard_config.h"

#include "run/experiment/metrics_config.h"

namespace isthmus::app {

void DashboardConfig::serialize(config::Archive& ar) {
  ar({"listen", &listen, config::Scope::per_site,
      "ADDRESS:PORT at which the coordinator serves a page that shows the run in a browser, or the next free "
      "port if that is taken; a port alone means loopback; at any other address the page needs the token in "
      "the URL that the coordinator prints; empty: none"});
}

outer_sync::Address DashboardConfig::address() const { return page_address(listen, "dashboard.listen"); }

void DashboardConfig::check() const {
  if (!listen.empty()) static_cast<void>(address());
}

}  // namespace isthmus::app
