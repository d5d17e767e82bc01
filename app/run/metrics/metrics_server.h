#pragma once
// Serves readings to Prometheus over HTTP, on its own thread. The training thread hands over values and never
// waits for a reader.

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "run/experiment/metrics_config.h"
#include "run/metrics/metric_table.h"
#include "run/metrics/page_port.h"

namespace isthmus::app {

/// The newest readings, passed from one thread to another.
class LatestReadings {
 public:
  void put(Readings readings);
  [[nodiscard]] std::shared_ptr<const Readings> get() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Readings> readings_ = std::make_shared<const Readings>();
};

/// Values of the labels that all metrics of this process have.
struct MetricsOrigin {
  std::string run;
  std::string process;  ///< name of the worker, or coordinator
};

class MetricsServer {
 public:
  /// Called on the server's thread for each request.
  using Source = std::function<Readings()>;
  /// Throws Error(config) if no port can be opened (page_port.h).
  MetricsServer(const MetricsConfig& config, MetricsOrigin origin, Source source);

  /// URL of the page: "http://127.0.0.1:9400/metrics".
  [[nodiscard]] const std::string& url() const { return url_; }

 private:
  std::string url_;
  std::unique_ptr<outer_sync::PageServer> server_;
};

/// Starts a server and reports its URL; null if the config asks for none.
[[nodiscard]] std::unique_ptr<MetricsServer> serve_metrics(
    const MetricsConfig& config, MetricsOrigin origin, MetricsServer::Source source,
    const std::function<void(const std::string&)>& say);

}  // namespace isthmus::app
