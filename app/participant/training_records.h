#pragma once
// Records of a participant: metrics.jsonl and the event file in its folder, and the readings for Prometheus.
// Also ends its trace after run.trace_steps. Used on the participant's thread.

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/metrics.h"
#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "participant/hooks.h"
#include "run/experiment/experiment.h"
#include "run/metrics/curves.h"
#include "run/metrics/metrics_server.h"
#include "run/metrics/run_readings.h"

namespace isthmus::app {

class TrainingRecords final : public ParticipantObserver {
 public:
  using Say = std::function<void(const std::string&)>;
  enum class Pace {
    every_step,
    when_due  ///< when something is sent or applied, or once a second: other steps make no system call
  };
  /// `copies` gets the lines of metrics.jsonl too. The experiment and the trace must outlive it. Throws
  /// Error(data) naming a file that cannot be opened.
  TrainingRecords(const Experiment& experiment, const std::filesystem::path& folder, Trace& trace,
                  std::shared_ptr<outer_sync::RecordQueue> copies, Pace pace, const Say& say);

  /// Serves the readings if the config asks for that. Throws Error(config) if no port can be opened.
  void serve(const outer_sync::MemberNode& node, const std::string& name, const Say& say);

  void entered(const Participant& participant) override;
  void took_state(const Participant& participant, double seconds) override;
  void stepped(const Participant& participant, const StepRecord& record) override;
  void agreed(const Participant& participant) override;
  void evaluated(const EvaluatedShare& evaluation) override;

 private:
  void limit_trace(const Participant& participant);
  void write(const Participant& participant);
  void write_steps();
  void write(const nlohmann::ordered_json& line);

  const Experiment& config_;
  Trace& trace_;
  const Pace pace_;
  Metrics metrics_;
  Curves curves_;
  std::vector<StepRecord> records_;   ///< not yet written
  std::optional<StepRecord> newest_;  ///< not yet in the readings; only with a server
  std::chrono::steady_clock::time_point written_;
  ReplicaFigures figures_;
  LatestReadings readings_;
  const outer_sync::MemberNode* node_ = nullptr;
  std::unique_ptr<MetricsServer> server_;  ///< last: its thread uses the readings
};

}  // namespace isthmus::app
