#pragma once
// Shows and records a coordinator's run: progress on the terminal, metrics.jsonl, figures for
// Prometheus, the dashboard, events, and the answer to `isthmus ctl status`. Called on the coordinator's io
// thread unless stated otherwise.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/dashboard/dashboard.h"
#include "coordinator/dashboard/recent_lines.h"
#include "coordinator/events/run_events.h"
#include "coordinator/records/gathered_folders.h"
#include "coordinator/records/round_timeline.h"
#include "coordinator/replan/auto_replan.h"
#include "coordinator/wandb/wandb_process.h"
#include "isthmus/base/metrics.h"
#include "isthmus/base/progress.h"
#include "isthmus/outer_sync/net/coordinator/coordinator_node.h"
#include "run/metrics/curves.h"
#include "run/metrics/metrics_server.h"
#include "run/metrics/run_readings.h"
#include "run/metrics/summary.h"

namespace isthmus::app {

/// Large because all that a coordinator shows comes from the same calls; what needs state of its own is in
/// the parts that it owns.
class Display final : public outer_sync::CoordinatorObserver {
 public:
  using Coordinator = outer_sync::protocol::Coordinator;

  /// `fresh`: the run is neither continued nor resumed.
  Display(const Experiment& experiment, bool fresh);

  /// Lets a resumed run continue the curve of the runs before it.
  void recall_evaluations();
  /// Passes the members' names to `wandb`, which must outlive the run.
  void logs_to(WandbProcess& wandb) { wandb_ = &wandb; }
  /// `replan` must outlive the run.
  void plans_with(AutoReplan& replan) { replan_ = &replan; }
  /// Serves metrics for Prometheus, and the dashboard, where the config asks for them.
  void serve();
  /// Ends the progress line.
  void finish() { progress_.finish(); }
  void ended(const outer_sync::protocol::Ended& ended, bool stopped) { events_.ended(ended, stopped); }
  [[nodiscard]] const std::map<std::uint64_t, double>& evaluations() const { return evaluations_; }
  [[nodiscard]] const std::map<std::string, GradientReport>& gradients() const { return gradients_; }

  void store(const outer_sync::protocol::LastView& view) override;
  std::string status(const Coordinator& coordinator) override;
  /// Any thread.
  void message(const std::string& text) override;
  bool gathered(const outer_sync::protocol::Gathered& news) override;
  void evaluated(std::uint64_t step, double loss) override;
  void round_judged(const outer_sync::protocol::RoundJudged& round) override;
  void members_changed(const Coordinator& coordinator) override;
  void ticked(const Coordinator& coordinator) override;

 private:
  using Clock = std::chrono::steady_clock;
  /// Sums over members at one moment, for rates.
  struct Totals {
    double steps = 0;  ///< of the slowest member
    double bytes = 0;
    Clock::time_point at = Clock::now();
  };

  [[nodiscard]] nlohmann::ordered_json status_json(const Coordinator& coordinator) const;
  /// Any thread.
  void keep(const std::string& line);
  void rate(const Totals& now, ProgressState& state);
  void publish(const Coordinator& coordinator);
  void write_paths(const outer_sync::protocol::RunPaths& paths);
  void write_relays(std::vector<Coordinator::RelayedPair> relays);

  const Experiment& experiment_;
  Progress progress_;
  Metrics metrics_;
  Curves curves_;  ///< the evaluations
  std::map<std::uint64_t, double> evaluations_;
  std::map<std::string, GradientReport> gradients_;  ///< by name
  std::vector<Coordinator::RelayedPair> relays_;     ///< as last written
  std::string outlier_;                              ///< of the round judged last
  std::optional<Totals> first_, recent_;
  std::pair<std::uint64_t, std::size_t> shown_;  ///< view, members that participate
  std::uint64_t paths_written_ = 0;              ///< number of comparisons at the last write
  double wire_ = 0;
  std::mutex output_;
  RecentLines lines_;
  EventHook hook_;
  RunEvents events_;
  GatheredFolders gathered_;
  AutoReplan* replan_ = nullptr;
  WandbProcess* wandb_ = nullptr;
  RoundTimeline timeline_;
  const Clock::time_point began_ = Clock::now();
  std::uint64_t view_changes_ = 0;
  Clock::time_point published_;
  LatestReadings readings_;
  Clock::time_point shown_at_;  ///< on the dashboard
  // Last: their threads read the members above.
  std::unique_ptr<MetricsServer> server_;
  std::unique_ptr<Dashboard> dashboard_;
};

}  // namespace isthmus::app
