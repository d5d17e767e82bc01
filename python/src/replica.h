#pragma once
// One replica of a run, driven by another program's training loop: app/worker/worker.cpp with control
// inverted. No Python here.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/base/event_file.h"
#include "isthmus/base/metrics.h"
#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "run/experiment/experiment.h"
#include "run/metrics/metrics_server.h"
#include "run/metrics/run_readings.h"
#include "run/process/run_folder.h"
#include "worker/replica_run.h"

namespace isthmus::python {

/// The local parameters: fp32 in host memory, in fragment order. If the model keeps them elsewhere or in
/// another format, `fetch` copies a range here and `store` copies it back; otherwise both are null.
class Memory final : public outer_sync::LocalParameters {
 public:
  using Move = std::function<void(outer_sync::Range)>;
  Memory(std::span<float> values, Move fetch, Move store)
      : values_(values), fetch_(std::move(fetch)), store_(std::move(store)) {}

  std::span<const float> read(outer_sync::Range range) override { return modify(range); }
  std::span<float> modify(outer_sync::Range range) override {
    if (fetch_) fetch_(range);
    return values_.subspan(range.begin, range.size);
  }
  void modified(outer_sync::Range range) override {
    if (store_) store_(range);
  }

 private:
  std::span<float> values_;
  Move fetch_, store_;
};

struct ReplicaRequest {
  app::Experiment experiment;
  std::string name;
  std::string build;  ///< of the training program, for messages about different builds
  bool quiet = false;
  std::vector<outer_sync::log::LoggedTensor> tensors;  ///< in buffer order
  std::vector<outer_sync::Range> fragments;
  Memory memory;  ///< as long as the layout's buffer; padding is zero
  std::function<void()> while_waiting;
  std::optional<Bytes> resume;  ///< result of `save`
  std::string precision, device;
};

/// Used by one thread, which makes all waits.
class Replica {
 public:
  /// Joins the run and returns when the first step may begin: with the others, or after copying their state.
  /// Throws Error as `isthmus worker` does, and what `while_waiting` throws.
  explicit Replica(ReplicaRequest request);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// Call it after an inner step of `tokens` tokens. Returns false after the last step: the run is over or
  /// was stopped, or this replica is asked to leave.
  bool after_step(std::optional<double> loss, std::uint64_t tokens);
  /// Whether `after_step` would send or apply anything; then the caller checks the parameters first.
  [[nodiscard]] bool is_due() const;
  [[nodiscard]] bool synchronous() const { return outer_.synchronous(); }
  void average_gradients(std::span<float> gradients, std::uint64_t tokens);

  [[nodiscard]] std::span<const float> global_parameters() { return outer_.global_parameters(); }
  [[nodiscard]] std::string global_hash() {
    return (final_hash_ ? *final_hash_ : outer_.global_hash()).hex();
  }
  [[nodiscard]] std::uint64_t step() const { return outer_.step(); }
  [[nodiscard]] std::uint64_t buffer_size() const { return layout_.buffer_size(); }
  [[nodiscard]] bool running() const { return phase_ == Phase::training; }
  [[nodiscard]] bool stopped() const { return stopped_; }
  /// Why this replica was asked to leave; empty if it was not.
  [[nodiscard]] std::string leaves() const { return drained_.value_or(""); }
  [[nodiscard]] bool frozen() const { return outer_.frozen(); }
  /// How often the state was copied from others.
  [[nodiscard]] std::uint64_t states_taken() const { return states_taken_; }
  [[nodiscard]] outer_sync::Rank rank() const { return node_.status().rank(); }
  [[nodiscard]] const outer_sync::OuterLoop::Stats& stats() const { return outer_.stats(); }
  [[nodiscard]] outer_sync::SentBytes wire() const { return node_.status().sent; }
  /// Whether the run wants an evaluation, or a checkpoint, of this step.
  [[nodiscard]] bool wants_evaluation() const;
  [[nodiscard]] bool wants_checkpoint();

  /// Throws Error(network) while rounds do not commit.
  [[nodiscard]] Bytes save();
  void report_evaluation(double sum_nats, std::uint64_t tokens);
  void request_stop(const std::string& reason) { node_.request_stop(reason); }
  /// If the run is over, sends the final report and waits for the others; otherwise leaves the run. Further
  /// calls do nothing.
  void close(const std::string& why);

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { joining, training, over, failed, closed };

  void join(const std::optional<Bytes>& resume);
  void begin_with_others_state();
  void make_step(std::optional<double> loss, std::uint64_t tokens);
  void at_agreed_step();
  bool await_turn();
  bool may_leave();
  template <class Work>
  auto guarded(Work work);
  void record(std::optional<double> loss, std::uint64_t tokens, double took);
  void write_records();
  void report();
  void check_training(const char* what) const;
  void say(const std::string& text) const;
  [[nodiscard]] double waited() const;

  app::Experiment config_;
  const std::string name_, build_, precision_, device_;
  const bool quiet_;
  const int process_;
  std::vector<outer_sync::log::LoggedTensor> tensors_;
  outer_sync::FragmentLayout layout_;
  Digest model_;
  std::filesystem::path folder_;
  app::FolderLock lock_;
  const std::shared_ptr<outer_sync::RecordQueue> gathered_ = std::make_shared<outer_sync::RecordQueue>();
  Trace trace_;
  Metrics metrics_;
  EventFile events_;
  Memory memory_;
  outer_sync::MemberNode node_;
  outer_sync::OuterLoop outer_;
  app::NewFigures new_figures_;
  app::LatestReadings readings_;
  std::unique_ptr<app::MetricsServer> server_;

  Phase phase_ = Phase::joining;
  std::string failure_;
  std::optional<Digest> final_hash_;  ///< set once the run is over
  const std::uint64_t last_;
  std::uint64_t first_step_ = 0, states_taken_ = 0, tokens_ = 0;
  bool averaged_ = false, stopped_ = false;
  std::optional<std::string> drained_;
  std::optional<std::uint64_t> leave_by_;
  Clock::time_point began_;  ///< start of the inner step
  double train_seconds_ = 0, compute_seconds_ = 0, busy_step_seconds_ = 0;
  std::uint64_t disk_free_ = 0;
  std::vector<app::StepRecord> records_;  ///< not yet written
  Clock::time_point written_;
  app::ReplicaFigures figures_;
};

}  // namespace isthmus::python
