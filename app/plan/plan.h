#pragma once
// `isthmus plan`: predicts how a run would use its links, memory and disks.

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "isthmus/outer_sync/plan/recommend.h"
#include "plan/links.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

/// Measures a training step of this experiment on this machine, in seconds.
using MeasureStep = std::function<double(const Experiment&, std::int64_t vocab)>;

struct PlanRequest {
  Experiment experiment;
  std::string params;      ///< overrides the config's model: "200M"
  std::int64_t vocab = 0;  ///< overrides the tokenizer's
  std::string step_time;   ///< "500ms"
  double flops = 0;        ///< per second, of all devices of a replica; with mfu, replaces step_time
  double mfu = 0.4;
  std::string links;  ///< file, or folder of a run
  bool probe = false;
  double utilization = 0.99;
  double price = 0;                              ///< per GB that a replica sends
  std::string device_memory, host_memory, disk;  ///< "24GB"; empty: not checked
  bool json = false;
  MeasureStep measure_step;  ///< null in a binary without a trainer
};

/// The request after everything was looked up or measured.
struct PlanInput {
  Experiment experiment;
  std::uint64_t parameters = 0;
  std::function<outer_sync::FragmentLayout(std::int64_t num_fragments)> layout;
  std::optional<std::int64_t> layers;
  double step_seconds = 0;
  std::string step_source;
  Links links;
  outer_sync::plan::Setting setting;  ///< its step times are those of agreed steps
  std::shared_ptr<std::map<std::int64_t, outer_sync::plan::Cut>> cuts =
      std::make_shared<std::map<std::int64_t, outer_sync::plan::Cut>>();  ///< cache, by num_fragments
  [[nodiscard]] const outer_sync::plan::Cut& cut(std::int64_t num_fragments) const;
  std::vector<double> own_step_seconds;  ///< of each replica's inner step
  std::vector<double> tokens_per_step;   ///< of each replica, per agreed step
};

/// Throws Error(config) for missing or invalid values.
[[nodiscard]] PlanInput plan_input(const PlanRequest& request);
/// Everything that `plan` prints.
[[nodiscard]] nlohmann::ordered_json plan_json(const PlanRequest& request, const PlanInput& input);

/// Settings that reach the wanted utilization: one for each codec that can.
[[nodiscard]] std::vector<outer_sync::plan::Choice> find_choices(double utilization, const PlanInput& input);

/// Prints the plan. Exit status 0, or Error's.
int run_plan(const PlanRequest& request);
/// Prints the table of the Streaming DiLoCo paper next to ours.
int run_paper_table(bool json);

}  // namespace isthmus::app
