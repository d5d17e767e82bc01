#include "run/metrics/metrics_server.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <memory>
#include <utility>

#include "isthmus/base/text.h"
#include "run/output/version.h"

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

/// Renders the current page.
class MetricsPage {
 public:
  MetricsPage(MetricsOrigin origin, MetricsServer::Source source)
      : origin_(std::move(origin)), source_(std::move(source)) {}

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
    // Names come from others, and a reader would reject the whole page for one invalid byte.
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
  MetricsServer::Source source_;
};

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

MetricsServer::MetricsServer(const MetricsConfig& config, MetricsOrigin origin, Source source) {
  const auto page = std::make_shared<const MetricsPage>(std::move(origin), std::move(source));
  auto opened = serve_pages(
      config.address(), "metrics.listen",
      {.pages = {{.path = "/metrics", .type = "text/plain; version=0.0.4; charset=utf-8", .text = [page] {
                    return page->text();
                  }}}});
  server_ = std::move(opened.server);
  url_ = "http://" + opened.address.to_string() + "/metrics";
}

std::unique_ptr<MetricsServer> serve_metrics(const MetricsConfig& config, MetricsOrigin origin,
                                             MetricsServer::Source source,
                                             const std::function<void(const std::string&)>& say) {
  if (config.listen.empty()) return nullptr;
  auto server = std::make_unique<MetricsServer>(config, std::move(origin), std::move(source));
  say("metrics at " + server->url());
  return server;
}

}  // namespace isthmus::app
