#include "coordinator.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <optional>

#include "isthmus/base/error.h"
#include "isthmus/base/metrics.h"
#include "isthmus/base/progress.h"
#include "isthmus/outer_sync/transport/coordinator_node.h"
#include "run_folder.h"
#include "signals.h"
#include "summary.h"

namespace isthmus::app {

using outer_sync::protocol::Coordinator;
using outer_sync::protocol::Ended;
using Clock = std::chrono::steady_clock;

namespace {

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Sums over members at one moment, for rates.
struct Totals {
  double steps = 0;  ///< of the slowest member
  double bytes = 0;
  Clock::time_point at = Clock::now();
};

class Display final : public outer_sync::CoordinatorObserver {
 public:
  explicit Display(const Experiment& experiment)
      : experiment_(experiment),
        progress_(stdout, isatty(STDOUT_FILENO) == 1),
        metrics_(experiment.folder() / "metrics.jsonl") {}

  void message(const std::string& text) override { progress_.message(text); }

  void evaluated(std::uint64_t step, double loss) override {
    evaluations_[step] = loss;
    progress_.message(fmt::format("step {}: eval loss {:.4f}", step, loss));
    metrics_.write({{"step", step}, {"eval_loss", loss}});
  }

  void members_changed(const Coordinator& coordinator) override {
    ProgressState state;
    Totals now;
    const auto& members = coordinator.members();
    std::uint64_t slowest = ~std::uint64_t{0};
    for (const auto& [name, member] : members) {
      const auto& beat = member.heartbeat;
      slowest = std::min(slowest, beat.step);
      state.loss += beat.loss / static_cast<double>(members.size());
      state.utilization += beat.utilization / static_cast<double>(members.size());
      state.tokens_per_second += beat.tokens_per_second;
      now.bytes += static_cast<double>(beat.bytes_sent);
    }
    now.steps = static_cast<double>(slowest);
    if (slowest == 0) return;
    state.step = slowest;
    state.steps = static_cast<std::uint64_t>(experiment_.run.steps);
    rate(now, state);
    progress_.update(state);
  }

  /// A resumed run goes on with the curve of the runs before it.
  void recall_evaluations() {
    std::ifstream in(experiment_.folder() / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (json.is_object() && json.contains("eval_loss") && json["eval_loss"].is_number()) {
        evaluations_[json.value("step", std::uint64_t{0})] = json["eval_loss"];
      }
    }
  }

  void finish() { progress_.finish(); }
  [[nodiscard]] const std::map<std::uint64_t, double>& evaluations() const { return evaluations_; }

 private:
  /// Wire rate over the last seconds, time left from the pace since the first step seen.
  void rate(const Totals& now, ProgressState& state) {
    if (!first_) first_ = now;
    if (!recent_ || now.at - recent_->at > std::chrono::seconds(2)) {
      if (recent_)
        wire_ =
            8e-6 * (now.bytes - recent_->bytes) / std::chrono::duration<double>(now.at - recent_->at).count();
      recent_ = now;
    }
    state.wire_mbit_per_second = wire_;
    const double took = std::chrono::duration<double>(now.at - first_->at).count();
    const double done = now.steps - first_->steps;
    if (done > 0) state.eta_seconds = took / done * (static_cast<double>(state.steps) - now.steps);
  }

  const Experiment& experiment_;
  Progress progress_;
  Metrics metrics_;
  std::map<std::uint64_t, double> evaluations_;
  std::optional<Totals> first_, recent_;
  double wire_ = 0;
};

void announce_port(int fd, std::uint16_t port) {
  if (fd < 0) return;
  const auto line = std::to_string(port) + "\n";
  if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    throw Error(ErrorKind::network, "cannot tell the launcher which port the coordinator has");
  }
  close(fd);
}

void write_summary(Experiment& experiment, const Coordinator& coordinator, const Display& display,
                   double wall_seconds) {
  RunReport report{.members = {}, .evaluations = display.evaluations(), .wall_seconds = wall_seconds};
  for (const auto& [name, member] : coordinator.members())
    report.members.push_back(member_report(member.result.summary));
  // A run that had gone further before it was resumed has recalled evaluations of steps that are yet to come.
  auto& evaluations = report.evaluations;
  evaluations.erase(evaluations.upper_bound(report.members.front().last_step), evaluations.end());
  const auto summary = summary_json(experiment, report);
  const auto file = experiment.folder() / "summary.json";
  std::ofstream out(file);
  out << summary.dump(2) << "\n";
  out.close();
  if (!out) throw Error(ErrorKind::data, "cannot write " + file.string());
  std::fputs(summary_table(summary, report.members.front().sample).c_str(), stdout);
}

}  // namespace

int run_coordinator(CoordinatorRequest request) {
  auto& experiment = request.experiment;
  std::filesystem::create_directories(experiment.folder());
  if (!request.resume) {
    for (const auto* file : {"metrics.jsonl", "summary.json"}) make_room(experiment.folder() / file);
  }
  std::atomic<bool> interrupted = false;
  Display display(experiment);
  if (request.resume) display.recall_evaluations();
  outer_sync::CoordinatorNode node(experiment.network,
                                   {.run = experiment.run.name,
                                    .replicas = static_cast<std::size_t>(experiment.replicas),
                                    .config = config::shared_items(experiment),
                                    .token = {},
                                    .join_timeout = {},
                                    .detect_timeout = {}},
                                   display);
  const SignalThread signals([&](int count) {
    if (count > 1) _exit(130);
    interrupted = true;
    node.request_stop("asked to by a signal");
  });
  announce_port(request.announce_fd, node.port());
  display.message(fmt::format("coordinator of '{}' listens at port {}, waiting for {} replicas",
                              experiment.run.name, node.port(), experiment.replicas));
  const auto begin = Clock::now();
  const auto ended = node.run();
  display.finish();
  if (ended.how == Ended::How::finished) {
    write_summary(experiment, node.coordinator(), display, seconds_since(begin));
    return interrupted ? 130 : 0;
  }
  if (ended.how == Ended::How::stopped) return 130;
  // Also after a signal: `launch` sends one when it has seen somebody end, and this is who knows the reason.
  throw Error(ended.how == Ended::How::diverged ? ErrorKind::divergence : ErrorKind::network, ended.reason);
}

}  // namespace isthmus::app
