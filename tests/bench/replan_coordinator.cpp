// The coordinator of `isthmus bench outer` with outer.auto during the run, for replan_on_links.py:
//
//   replan_coordinator CONFIG --params N --step-time TIME --steps N --listen ADDRESS --certs FOLDER
//     [--tuning NAME=VALUE ...]
//
// --tuning replaces constants of ReplanTuning. Replicas are `isthmus bench outer --role replica` with the
// same config, parameters and times. Prints a line of JSON for each change, when it is agreed, and for the
// whole run at its end.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/replica.h"
#include "bench/report.h"
#include "command_line/command_line.h"
#include "coordinator/coordinator.h"
#include "coordinator/replan/auto_replan.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/net/coordinator/coordinator_node.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "plan/model_size.h"
#include "replan_tuning.h"
#include "run/experiment/identity.h"

namespace isthmus::app {
namespace {

using Json = nlohmann::ordered_json;

void print_line(const Json& json) {
  fmt::print("{}\n", json.dump());
  std::fflush(stdout);
}

class Observer final : public outer_sync::CoordinatorObserver {
 public:
  void plans_with(AutoReplan& replan) { replan_ = &replan; }
  void message(const std::string& text) override { fmt::print(stderr, "{}\n", text); }
  void members_changed(const outer_sync::protocol::Coordinator& coordinator) override {
    if (replan_ == nullptr) return;
    if (auto change = replan_->look(coordinator)) print_line({{"replanned", *std::move(change)}});
  }
  void evaluated(std::uint64_t /*step*/, double /*loss*/) override {}
  void round_judged(const outer_sync::protocol::RoundJudged& /*round*/) override {}
  void store(const outer_sync::protocol::LastView& /*view*/) override {}

 private:
  AutoReplan* replan_ = nullptr;
};

int run(int argc, char** argv) {
  ConfigOptions flags;
  std::string params, step_time;
  std::int64_t steps = 0;
  std::vector<std::string> assignments;
  CLI::App options("the coordinator of bench outer, with outer.auto during the run");
  add_config_file(options, flags.config)->required();
  options.add_option("--params", params, "number of parameters")->required();
  options.add_option("--step-time", step_time, "time of an inner step")->required();
  options.add_option("--steps", steps, "number of steps")->required();
  options.add_option("--listen", flags.coordinator, "ADDRESS:PORT")->required();
  options.add_option("--certs", flags.certs, "folder with certificates")->required();
  options.add_option("--tuning", assignments, "NAME=VALUE");
  CLI11_PARSE(options, argc, argv);
  outer_sync::plan::ReplanTuning tuning;
  for (const auto& assignment : assignments) outer_sync::plan::set_tuning(tuning, assignment);
  OuterBenchRequest request;
  request.parameters = parameter_count(params);
  request.step_time = step_duration(step_time);
  request.experiment = load_experiment(flags.config, flags.assignments(), {}, Purpose::benchmark);
  auto& experiment = request.experiment;
  make_measurable(experiment, steps);

  auto network = experiment.network;
  network.certs = own_certificates(network.certs, outer_sync::tls::coordinator_name);
  auto coordinator = coordinator_options(experiment);
  coordinator.config = bench_items(request);
  Observer observer;
  outer_sync::CoordinatorNode node(network, std::move(coordinator), observer);
  AutoReplan replan(
      experiment,
      [&node](const auto& items, const std::string& why) { node.propose(items, "outer.auto", why); },
      [&observer](const std::string& text) { observer.message(text); }, tuning);
  observer.plans_with(replan);
  const auto ended = node.run();
  if (ended.how != outer_sync::protocol::Ended::How::finished) throw Error(ErrorKind::network, ended.reason);
  Json members = Json::array();
  for (const auto& [name, member] : node.coordinator().members())
    members.push_back(Json::parse(member.result.summary));
  print_line({{"tuning", outer_sync::plan::json_of_tuning(tuning)}, {"members", std::move(members)}});
  return 0;
}

}  // namespace
}  // namespace isthmus::app

int main(int argc, char** argv) {
  try {
    return isthmus::app::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "replan_coordinator: {}\n", error.what());
    return 1;
  }
}
