#include "recorded.h"

#include <fmt/format.h>

#include "compare/runs/run_record.h"
#include "compare/runs/run_state.h"

namespace isthmus {

namespace {

constexpr double tokens_per_replica = 4 * 32;  // per step

constexpr std::string_view base_text = R"(
run: {name: base, steps: 40, eval_every: 20}
replicas: 2
model: {layers: 1, dim: 32, heads: 2}
data: {path: corpus.txt, seq_len: 32}
inner: {batch: 4}
outer: {num_fragments: 2, sync_every: 10}
)";

std::string metrics_of(std::uint64_t steps, double bytes) {
  std::string text;
  for (std::uint64_t step = 1; step <= steps; ++step)
    text +=
        fmt::format(R"({{"step":{},"loss":2.5,"step_seconds":0.1,"tokens_per_second":{},"utilization":0.9,)"
                    R"("stall_seconds":{},"bytes_sent":{}}})"
                    "\n",
                    step, tokens_per_replica / 0.1, 0.01 * static_cast<double>(step),
                    bytes * static_cast<double>(step) / static_cast<double>(steps));
  return text;
}

}  // namespace

Recorded::Recorded() {
  write("base.yaml", base_text);
  write("corpus.txt", "text");
}

app::Comparison Recorded::comparison(const std::string& text, const std::string& size) const {
  write("comparison.yaml", text);
  return app::load_comparison(file(), size, {"out=" + (folder_ / "out").string()});
}

void Recorded::finish(const app::RunPlan& run, const Losses& losses, double bytes) const {
  const auto put = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories((run.folder() / name).parent_path());
    std::ofstream(run.folder() / name, std::ios::binary) << text;
  };
  auto experiment = run.experiment;
  experiment.trainer.threads = 1;  // as `launch` fills it in
  put("config.yaml", app::to_yaml(experiment));
  std::string evaluations;
  for (const auto& [step, loss] : losses)
    evaluations += fmt::format("{{\"step\":{},\"eval_loss\":{}}}\n", step, loss);
  put("metrics.jsonl", evaluations);
  nlohmann::json summary = {{"stopped", false},
                            {"commit", commit},
                            {"parameters", 1000},
                            {"wan_bytes_sent", nlohmann::json::object()}};
  for (const auto& name : app::worker_names(experiment)) {
    put(name + "/metrics.jsonl", metrics_of(losses.back().first, bytes));
    summary["wan_bytes_sent"][name] = {{"payload", bytes / 2}, {"total", bytes}};
    summary["global_hash"][name] = global_hash;
  }
  put("summary.json", summary.dump());
}

void Recorded::finish_arm(const app::Comparison& comparison, std::size_t arm,
                          const std::vector<double>& losses, double bytes) const {
  std::size_t next = 0;
  for (const auto& run : comparison.runs) {
    if (run.arm != arm) continue;
    if (next == losses.size()) return;
    finish(run, {{0, 3}, {20, 2}, {40, losses[next++]}}, bytes);
  }
}

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an Error, but none was thrown";
  return {};
}

app::Records records_of(const app::Comparison& comparison) {
  app::Records records;
  records.of_arm.resize(comparison.arms.size());
  for (const auto& run : comparison.runs) {
    const auto state = app::state_of(run);
    if (state.stage != app::RunState::Stage::finished) {
      records.missing.push_back(run.name());
      continue;
    }
    records.of_arm[run.arm].push_back(app::read_run(run));
    records.of_arm[run.arm].back().ended = state.ended;
  }
  for (std::size_t i = 0; i < comparison.arms.size(); ++i)
    for (const auto& curve : comparison.arms[i].curves) records.of_arm[i].push_back(app::read_curve(curve));
  return records;
}

}  // namespace isthmus
