#pragma once
// Serves readings to Prometheus over HTTP, on a library's threads: whoever trains hands values over and never
// waits for a reader.

#include <functional>
#include <memory>
#include <mutex>
#include <string>

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
  /// Called on threads of the server's, whenever somebody asks.
  using Source = std::function<Readings()>;
  /// The next free port where that of the address is taken, up to 63 further: processes of one machine share
  /// a config. Throws Error(config) where none can be opened. Start it after the SignalThread, so that its
  /// threads leave signals alone.
  MetricsServer(const MetricsConfig& config, MetricsOrigin origin, Source source);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  /// Where it listens: "http://127.0.0.1:9400/metrics".
  [[nodiscard]] const std::string& url() const { return url_; }

 private:
  class Page;
  class Listener;
  std::string url_;
  std::shared_ptr<Page> page_;
  std::unique_ptr<Listener> listener_;
};

/// Null where the config asks for none; says where it is served.
[[nodiscard]] std::unique_ptr<MetricsServer> serve_metrics(
    const MetricsConfig& config, MetricsOrigin origin, MetricsServer::Source source,
    const std::function<void(const std::string&)>& say);

}  // namespace isthmus::app
