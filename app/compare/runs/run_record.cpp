#include "compare/runs/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "compare/runs/run_state.h"
#include "isthmus/base/error.h"
#include "isthmus/base/text_file.h"

namespace isthmus::app {

namespace fs = std::filesystem;

namespace {

/// The value of a key; nullopt unless it is a finite number and not negative. The line may contain anything.
std::optional<double> figure_in(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_number()) return {};
  const double value = found->get<double>();
  return std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

/// A worker's metrics.jsonl, line by line. The worker's counters start again at 0 when it is restarted.
class WorkerMetrics {
 public:
  struct At {
    double step, tokens, seconds, bytes;
  };

  explicit WorkerMetrics(const fs::path& file) {
    each_line(file, [this](std::string_view text) {
      const auto line = nlohmann::json::parse(text, nullptr, false);
      if (line.is_object() && line.contains("step_seconds")) add(line);
    });
    end_life();
  }

  /// The worker's sums at this step; null before its first.
  [[nodiscard]] const At* at(double step) const {
    const auto after = std::ranges::upper_bound(steps_, step, {}, &At::step);
    return after == steps_.begin() ? nullptr : &*(after - 1);
  }
  [[nodiscard]] double last_step() const { return steps_.empty() ? 0 : steps_.back().step; }
  [[nodiscard]] double stall_seconds() const { return stalled_; }
  [[nodiscard]] double seconds() const { return seconds_; }
  [[nodiscard]] double compute_seconds() const { return computed_; }
  /// Bytes sent before the last restart.
  [[nodiscard]] double earlier_bytes() const { return earlier_bytes_; }
  [[nodiscard]] double bytes() const { return earlier_bytes_ + life_.bytes; }

 private:
  struct Life {
    double seconds = 0, bytes = 0, stalled = 0, utilization = 0;
  };

  void add(const nlohmann::json& line) {
    const auto step = figure_in(line, "step"), took = figure_in(line, "step_seconds"),
               rate = figure_in(line, "tokens_per_second"), bytes = figure_in(line, "bytes_sent");
    if (!step || !took || !rate || !bytes) return;
    // The worker went back to a checkpoint. It trains the steps after it again, but the time and bytes that
    // they took are spent.
    if (!steps_.empty() && (*step < steps_.back().step || *bytes < life_.bytes)) {
      earlier_bytes_ += life_.bytes;
      end_life();
      while (!steps_.empty() && steps_.back().step >= *step) steps_.pop_back();
    }
    life_.seconds += *took;
    life_.bytes = *bytes;
    life_.stalled = figure_in(line, "stall_seconds").value_or(life_.stalled);
    life_.utilization = figure_in(line, "utilization").value_or(life_.utilization);
    const double tokens = (steps_.empty() ? 0 : steps_.back().tokens) + std::round(*rate * *took);
    steps_.push_back({*step, tokens, seconds_ + life_.seconds, earlier_bytes_ + life_.bytes});
  }

  void end_life() {
    seconds_ += life_.seconds;
    computed_ += life_.seconds * life_.utilization;
    stalled_ += life_.stalled;
    life_ = {.seconds = 0, .bytes = life_.bytes, .stalled = 0, .utilization = 0};
  }

  std::vector<At> steps_;
  Life life_;
  double seconds_ = 0, computed_ = 0, stalled_ = 0, earlier_bytes_ = 0;
};

std::vector<WorkerMetrics> read_workers(const RunPlan& run) {
  std::vector<WorkerMetrics> workers;
  for (const auto& name : worker_names(run.experiment)) {
    if (const auto file = run.folder() / name / "metrics.jsonl"; fs::exists(file)) workers.emplace_back(file);
  }
  return workers;
}

/// Step -> loss. If a step was evaluated twice, the later loss counts.
std::map<double, double> evaluations_of(const fs::path& folder) {
  std::map<double, double> evaluations;
  const auto file = folder / "metrics.jsonl";
  if (!fs::exists(file)) return evaluations;
  each_line(file, [&](std::string_view text) {
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (!line.is_object()) return;
    const auto step = figure_in(line, "step"), loss = figure_in(line, "eval_loss");
    if (step && loss) evaluations[*step] = *loss;
  });
  return evaluations;
}

CurvePoint point_at(double step, double loss, const std::vector<WorkerMetrics>& workers) {
  CurvePoint point{.tokens = 0, .seconds = 0, .bytes = 0, .loss = loss};
  for (const auto& worker : workers) {
    const auto* at = worker.at(step);
    if (at == nullptr) continue;
    point.tokens += at->tokens;
    point.seconds = std::max(*point.seconds, at->seconds);
    *point.bytes += at->bytes / static_cast<double>(workers.size());
  }
  return point;
}

/// Only the summary knows the bytes sent after the last step, and for each worker only those since its last
/// restart.
void add_last_bytes(RunRecord& record, const nlohmann::json& summary, const std::vector<std::string>& names,
                    const std::vector<WorkerMetrics>& workers) {
  double payload = 0, total = 0, all = 0;
  for (std::size_t i = 0; i < workers.size() && i < names.size(); ++i) {
    const auto sent = summary["wan_bytes_sent"].find(names[i]);
    const auto theirs = sent == summary["wan_bytes_sent"].end() || !sent->is_object()
                            ? std::nullopt
                            : figure_in(*sent, "total");
    if (theirs) payload += figure_in(*sent, "payload").value_or(0);
    total += theirs.value_or(0);
    all += theirs ? workers[i].earlier_bytes() + *theirs : workers[i].bytes();
  }
  const double each = all / static_cast<double>(workers.size());
  record.curve.back().bytes = std::max(*record.curve.back().bytes, each);
  const double steps = std::max(workers.front().last_step(), 1.0);
  if (record.parameters > 0 && total > 0)
    record.bits = 8 * each * (payload / total) / static_cast<double>(record.parameters) / steps;
  if (all == 0) record.bits = 0;
}

void add_figures(RunRecord& record, const std::vector<WorkerMetrics>& workers) {
  double utilization = 0, stalled = 0;
  for (const auto& worker : workers) {
    if (worker.seconds() > 0) utilization += worker.compute_seconds() / worker.seconds();
    stalled = std::max(stalled, worker.stall_seconds());
    record.steps = std::max(record.steps, static_cast<std::uint64_t>(worker.last_step()));
  }
  record.utilization = utilization / static_cast<double>(workers.size());
  record.stall_seconds = stalled;
}

void add_origin(RunRecord& record, const nlohmann::json& summary) {
  const auto text = [](const nlohmann::json& value) {
    return value.is_string() ? value.get<std::string>() : std::string();
  };
  record.commit = text(summary.value("commit", nlohmann::json()));
  const auto hashes = summary.value("global_hash", nlohmann::json());
  if (hashes.is_object() && !hashes.empty()) record.global_hash = text(*hashes.begin());
}

/// A short run may have no outer steps.
void add_outer_steps(RunRecord& record, const nlohmann::json& summary) {
  const auto means = summary.find("outer_steps");
  if (means == summary.end() || !means->is_object()) return;
  const auto value = [&](const char* key) {
    const auto found = means->find(key);
    return found != means->end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
  };
  record.outer_gain = value("gain");
  record.outer_correlation = value("correlation");
}

}  // namespace

std::string RunRecord::ended_line() const { return fmt::format("seed {} {}", *seed, ended.words); }

RunRecord read_run(const RunPlan& run) {
  RunRecord record;
  record.seed = run.seed;
  record.source = run.folder();
  const auto workers = read_workers(run);
  const auto evaluations = evaluations_of(run.folder());
  if (workers.empty() || evaluations.empty()) {
    data_error(run.folder().string() +
               " has no evaluations of a run; move it away to run it again "
               "(data.heldout must not be 0: losses are compared on held-out text)");
  }
  for (const auto& [step, loss] : evaluations) record.curve.push_back(point_at(step, loss, workers));
  // Remove evaluations of steps that are missing in the workers' metrics: the file is damaged.
  const auto [first, last] = std::ranges::unique(record.curve, {}, &CurvePoint::tokens);
  record.curve.erase(first, last);
  record.replicas = static_cast<std::uint64_t>(run.experiment.replicas);
  add_figures(record, workers);
  if (const auto summary = summary_of(run.folder()); !summary.is_null()) {
    record.parameters = summary["parameters"];
    add_outer_steps(record, summary);
    add_last_bytes(record, summary, worker_names(run.experiment), workers);
    add_origin(record, summary);
  }
  return record;
}

SeedPairs pair_by_seed(const std::vector<RunRecord>& arm, const std::vector<RunRecord>& against) {
  const auto has_loss = [](const RunRecord& run) { return run.seed && run.is_whole() && !run.curve.empty(); };
  SeedPairs pairs;
  for (const auto& run : arm) {
    const auto other = std::ranges::find(against, run.seed, &RunRecord::seed);
    if (!has_loss(run) || other == against.end() || !has_loss(*other)) continue;
    pairs.seeds.push_back(*run.seed);
    pairs.arm.push_back(run.curve.back().loss);
    pairs.against.push_back(other->curve.back().loss);
  }
  return pairs;
}

std::optional<double> loss_at(const std::vector<CurvePoint>& curve, double tokens) {
  const auto after = std::ranges::lower_bound(curve, tokens, {}, &CurvePoint::tokens);
  if (after == curve.end()) return {};
  if (after->tokens == tokens) return after->loss;
  if (after == curve.begin()) return {};
  const auto& before = *(after - 1);
  const double part = (tokens - before.tokens) / (after->tokens - before.tokens);
  return before.loss + part * (after->loss - before.loss);
}

std::optional<double> first_at(const std::vector<CurvePoint>& curve, double target,
                               std::optional<double> CurvePoint::*what) {
  for (std::size_t i = 0; i < curve.size(); ++i) {
    if (curve[i].loss > target) continue;
    if (i == 0 || !(curve[i].*what) || !(curve[i - 1].*what)) return curve[i].*what;
    const auto &before = curve[i - 1], &after = curve[i];
    const double part = (before.loss - target) / (before.loss - after.loss);
    return *(before.*what) + part * (*(after.*what) - *(before.*what));
  }
  return {};
}

}  // namespace isthmus::app
