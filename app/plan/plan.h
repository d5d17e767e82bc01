#pragma once
// `isthmus plan`: what a run would do with its lines, its memory and its disks, before anything is paid for.

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "isthmus/outer_sync/plan/recommend.h"
#include "plan/links.h"
#include "run/experiment.h"

namespace isthmus::app {

/// Measures a training step of this experiment on this machine, in seconds.
using MeasureStep = std::function<double(const Experiment&, std::int64_t vocab)>;

struct PlanRequest {
  Experiment experiment;
  std::string params;      ///< in place of the config's model: "200M"
  std::int64_t vocab = 0;  ///< in place of the tokenizer's
  std::string step_time;   ///< "500ms"
  double flops = 0;        ///< of a replica's devices together, per second; with mfu in place of step_time
  double mfu = 0.4;
  std::string links;  ///< file, or folder of a run
  bool probe = false;
  double utilization = 0.99;
  double price = 0;                              ///< of a GB that leaves a replica
  std::string device_memory, host_memory, disk;  ///< "24GB"; empty: not compared
  bool json = false;
  MeasureStep measure_step;  ///< null in a binary without a trainer
};

/// What is planned with: the request after everything was looked up or measured.
struct PlanInput {
  Experiment experiment;
  std::uint64_t parameters = 0;
  std::function<outer_sync::FragmentLayout(std::int64_t num_fragments)> layout;
  std::optional<std::int64_t> layers;
  double step_seconds = 0;
  std::string step_source;
  Links links;
  outer_sync::plan::Setting setting;  ///< its network as the replicas' agreed clock goes
  std::shared_ptr<std::map<std::int64_t, outer_sync::plan::Cut>> cuts =
      std::make_shared<std::map<std::int64_t, outer_sync::plan::Cut>>();  ///< made so far, by num_fragments
  [[nodiscard]] const outer_sync::plan::Cut& cut(std::int64_t num_fragments) const;
  std::vector<double> own_step_seconds;  ///< of each replica
  std::vector<double> tokens_per_step;   ///< of each replica, in an agreed step
};

/// Throws Error(config) for what is missing or cannot be.
[[nodiscard]] PlanInput plan_input(const PlanRequest& request);
/// Everything that `plan` says.
[[nodiscard]] nlohmann::ordered_json plan_json(const PlanRequest& request, const PlanInput& input);

/// For the wanted utilisation: one setting of each codec that can do it.
[[nodiscard]] std::vector<outer_sync::plan::Choice> find_choices(const PlanRequest& request,
                                                                 const PlanInput& input);

/// Prints it. Exit status 0, or Error's.
int run_plan(const PlanRequest& request);
/// Prints the table of the Streaming DiLoCo paper beside ours.
int run_paper_table(bool json);

}  // namespace isthmus::app
