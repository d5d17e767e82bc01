#pragma once
// Serves readings to Prometheus over HTTP, on a thread of its own: whoever trains hands values over and never
// waits for a reader.

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "isthmus/outer_sync/net/link/page_server.h"
#include "run/metric_table.h"
#include "run/metrics_config.h"

namespace isthmus::app {

/// The newest readings, of one thread for another.
class LatestReadings {
 public:
  void put(Readings readings);
  [[nodiscard]] std::shared_ptr<const Readings> get() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Readings> readings_ = std::make_shared<const Readings>();
};

/// Who serves, for the labels that all metrics have.
struct MetricsOrigin {
  std::string run;
  std::string process;  ///< name of the worker, or coordinator
};

class MetricsServer {
 public:
  /// Called on the server's thread, whenever somebody asks.
  using Source = std::function<Readings()>;
  /// The next free port where that of the address is taken, up to 63 further: processes of one machine share
  /// a config. Throws Error(config) where none can be opened. Start it after the SignalThread, so that its
  /// thread leaves signals alone.
  MetricsServer(const MetricsConfig& config, MetricsOrigin origin, Source source);

  /// Where it listens: "http://127.0.0.1:9400/metrics".
  [[nodiscard]] const std::string& url() const { return url_; }

 private:
  std::string url_;
  std::unique_ptr<outer_sync::PageServer> server_;
};

/// Null where the config asks for none; says where it is served.
[[nodiscard]] std::unique_ptr<MetricsServer> serve_metrics(
    const MetricsConfig& config, MetricsOrigin origin, MetricsServer::Source source,
    const std::function<void(const std::string&)>& say);

}  // namespace isthmus::app
