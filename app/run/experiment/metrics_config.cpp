#include "run/experiment/metrics_config.h"

namespace isthmus::app {

void MetricsConfig::serialize(config::Archive& ar) {
  ar({"listen", &listen, config::Scope::per_site,
      "ADDRESS:PORT at which this process serves metrics to Prometheus, or the next free port if that is "
      "taken; a port alone means loopback; empty: none"});
}

outer_sync::Address page_address(const std::string& listen, std::string_view key) {
  const bool port_alone = listen.find_first_not_of("0123456789") == std::string::npos;
  return outer_sync::parse_address(port_alone ? "127.0.0.1:" + listen : listen, key);
}

outer_sync::Address MetricsConfig::address() const { return page_address(listen, "metrics.listen"); }

void MetricsConfig::check() const {
  if (!listen.empty()) static_cast<void>(address());
}

}  // namespace isthmus::app
