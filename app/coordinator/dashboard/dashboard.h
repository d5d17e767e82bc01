#pragma once
// The run in a browser (`dashboard.listen`): a page, and the JSON that it asks for every second. The
// coordinator's thread hands over what there is to show and never waits for a reader; the server's own thread
// answers.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/dashboard/curve.h"
#include "coordinator/dashboard/recent_lines.h"
#include "isthmus/outer_sync/net/link/page_server.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

class Dashboard {
 public:
  static constexpr std::size_t max_links = 200;

  /// `experiment` and `lines` must outlive it. Throws Error(config) if the port cannot be opened
  /// (page_port.h), Error(data) if the token cannot be read or written. Create it after the SignalThread.
  Dashboard(const Experiment& experiment, const RecentLines& lines);

  /// The URL to open, with the token if one is needed.
  [[nodiscard]] const std::string& url() const { return url_; }
  /// `status`: the answer to `ctl status`. `evaluations`: step and loss of the global parameters.
  void show(const outer_sync::protocol::Coordinator& coordinator, nlohmann::ordered_json status,
            const std::map<std::uint64_t, double>& evaluations);

 private:
  using Clock = std::chrono::steady_clock;
  struct Shown {
    std::string run = "null";  ///< JSON
    Clock::time_point at = Clock::now();
  };
  [[nodiscard]] std::string json() const;

  const Experiment& experiment_;
  const RecentLines& lines_;
  Curve training_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Shown> shown_ = std::make_shared<const Shown>();
  std::string url_;
  std::unique_ptr<outer_sync::PageServer> server_;  ///< last: its thread reads the members above
};

/// The document that the page reads. It has: age_seconds (since `run` was made), lines (RecentLines), and
/// run: null before the first status, or an object with status, evaluations and training (curve.h), links and
/// next_checkpoint (run_figures.h). `run` is JSON.
[[nodiscard]] std::string dashboard_json(double age_seconds, const nlohmann::ordered_json& lines,
                                         const std::string& run);

/// The token in this file, which is created, readable by this account only, if it does not exist. A
/// coordinator that is restarted keeps it, so that an open page continues. Throws Error(data) if the file is
/// invalid.
[[nodiscard]] std::string dashboard_token(const std::filesystem::path& file);

}  // namespace isthmus::app
