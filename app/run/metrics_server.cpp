#include "run/metrics_server.h"

#include <fmt/format.h>
#include <httplib.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/text.h"
#include "isthmus/outer_sync/transport/address.h"
#include "run/version.h"

namespace isthmus::app {
namespace {

prometheus::MetricType type_of(MetricKind kind) {
  switch (kind) {
    case MetricKind::counter:
      return prometheus::MetricType::Counter;
    case MetricKind::histogram:
      return prometheus::MetricType::Histogram;
    case MetricKind::gauge:
      break;
  }
  return prometheus::MetricType::Gauge;
}

prometheus::ClientMetric::Histogram histogram_of(const Reading& reading) {
  prometheus::ClientMetric::Histogram out;
  out.sample_sum = reading.value;
  const auto bounds = duration_bounds();
  for (std::size_t i = 0; i < reading.counts.size(); ++i) {
    out.sample_count += reading.counts[i];
    out.bucket.push_back({out.sample_count, i < bounds.size() ? bounds[i] : config::unbounded});
  }
  return out;
}

}  // namespace

void LatestReadings::put(Readings readings) {
  auto newest = std::make_shared<const Readings>(std::move(readings));
  const std::lock_guard lock(mutex_);
  readings_.swap(newest);
}

std::shared_ptr<const Readings> LatestReadings::get() const {
  const std::lock_guard lock(mutex_);
  return readings_;
}

class MetricsServer::Page {
 public:
  Page(MetricsOrigin origin, Source source) : origin_(std::move(origin)), source_(std::move(source)) {}

  /// In Prometheus' format.
  [[nodiscard]] std::string text() const { return prometheus::TextSerializer().Serialize(families()); }

 private:
  [[nodiscard]] std::vector<prometheus::MetricFamily> families() const {
    std::vector<prometheus::MetricFamily> families;
    for (const auto& row : metric_table())
      families.push_back({std::string(row.name), std::string(row.help), type_of(row.kind), {}});
    auto readings = source_();
    readings.push_back({Metric::build_info, 1, {version(), commit()}});
    for (const auto& reading : readings) {
      auto& family = families[static_cast<std::size_t>(reading.metric)];
      family.metric.push_back(metric_of(reading, family.type));
    }
    std::erase_if(families, [](const auto& family) { return family.metric.empty(); });
    return families;
  }
  [[nodiscard]] prometheus::ClientMetric metric_of(const Reading& reading,
                                                   prometheus::MetricType type) const {
    prometheus::ClientMetric out;
    // One byte that is no text would make a reader refuse the whole page; names come from others.
    out.label = {{"run", printable_ascii(origin_.run)}, {"process", printable_ascii(origin_.process)}};
    const auto& names = metric_table()[static_cast<std::size_t>(reading.metric)].labels;
    for (std::size_t i = 0; i < reading.labels.size(); ++i)
      out.label.push_back({std::string(names.at(i)), printable_ascii(reading.labels[i])});
    if (type == prometheus::MetricType::Counter) out.counter.value = reading.value;
    if (type == prometheus::MetricType::Gauge) out.gauge.value = reading.value;
    if (type == prometheus::MetricType::Histogram) out.histogram = histogram_of(reading);
    return out;
  }

  MetricsOrigin origin_;
  Source source_;
};

/// Not prometheus-cpp's own server: its threads have stacks of 100 KB, less than libtorch with CUDA needs for
/// each thread's storage, so that none can be started beside it.
class MetricsServer::Listener {
 public:
  /// `port()` is none where the address cannot be opened.
  Listener(const outer_sync::Address& address, std::shared_ptr<const Page> page) {
    // Two threads: a reader that does not read holds up another reader, for so long, and nobody else.
    server_.new_task_queue = [] { return new httplib::ThreadPool(2); };
    server_.set_read_timeout(patience).set_write_timeout(patience).set_keep_alive_max_count(1);
    // Without the library's SO_REUSEPORT, by which two processes would share a port.
    server_.set_socket_options([](auto socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server_.Get("/metrics", [page = std::move(page)](const auto&, auto& answer) {
      answer.set_content(page->text(), "text/plain; version=0.0.4; charset=utf-8");
    });
    if (address.port == 0) {
      port_ = server_.bind_to_any_port(address.host);
    } else if (server_.bind_to_port(address.host, address.port)) {
      port_ = address.port;
    }
    if (port_ > 0) start();
  }
  ~Listener() {
    if (!thread_.joinable()) return;
    server_.stop();
    thread_.join();
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  /// Of what is served; nothing was opened if it is not above zero.
  [[nodiscard]] int port() const { return port_; }

 private:
  static constexpr auto patience = std::chrono::seconds(2);

  /// Returns once it serves: what does not yet cannot be stopped.
  void start() {
    thread_ = std::thread([this] {
      server_.listen_after_bind();
      over_ = true;
    });
    while (!server_.is_running() && !over_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  httplib::Server server_;
  int port_ = -1;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

MetricsServer::MetricsServer(const MetricsConfig& config, MetricsOrigin origin, Source source)
    : page_(std::make_shared<Page>(std::move(origin), std::move(source))) {
  constexpr int most_tries = 64;
  auto address = config.address();
  const auto first = address;
  for (int tries = 0; tries < most_tries; ++tries) {
    listener_ = std::make_unique<Listener>(address, page_);
    if (listener_->port() > 0 || address.port == 0 || address.port == 65535) break;
    ++address.port;
  }
  if (listener_->port() <= 0) {
    throw Error(
        ErrorKind::config,
        fmt::format("metrics.listen is '{}', and neither that port nor one after it can be opened; expected "
                    "an address of this machine with a free port",
                    first.to_string()));
  }
  address.port = static_cast<std::uint16_t>(listener_->port());
  url_ = "http://" + address.to_string() + "/metrics";
}

MetricsServer::~MetricsServer() = default;

std::unique_ptr<MetricsServer> serve_metrics(const MetricsConfig& config, MetricsOrigin origin,
                                             MetricsServer::Source source,
                                             const std::function<void(const std::string&)>& say) {
  if (config.listen.empty()) return nullptr;
  auto server = std::make_unique<MetricsServer>(config, std::move(origin), std::move(source));
  say("metrics at " + server->url());
  return server;
}

}  // namespace isthmus::app
