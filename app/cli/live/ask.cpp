#include "cli/live/ask.h"

#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/net/coordinator/control_client.h"
#include "run/experiment/identity.h"

namespace isthmus::app {

void add_operator(CLI::App& verb, OperatorOptions& options) {
  verb.add_option("--coordinator", options.coordinator,
                  "HOST:PORT of the coordinator; overrides network.coordinator");
  verb.add_option("--config", options.config,
                  "the run's experiment in YAML, for its address and certificates");
  verb.add_option("--name", options.name, "name of your certificate: operator, or operator-NAME")
      ->capture_default_str();
}

LiveRun::LiveRun(const OperatorOptions& options) : knows_run_(!options.config.empty()), name_(options.name) {
  if (!knows_run_ && options.coordinator.empty())
    throw Error(ErrorKind::config, "the coordinator's address is not known; pass --coordinator or --config");
  experiment_ = load_experiment(options.config, options.assignments(), std::nullopt, Purpose::benchmark);
  take_identity(name_, experiment_);
}

nlohmann::json LiveRun::ask(outer_sync::protocol::Command command, std::chrono::seconds limit) const {
  if (knows_run_) command.run = experiment_.run.name;
  command.by = name_;
  const auto answer = outer_sync::ask(experiment_.network, command, limit);
  if (!answer.problem.empty()) throw Error(ErrorKind::config, answer.problem);
  auto json = nlohmann::json::parse(answer.text, nullptr, false);
  if (!json.is_object())
    throw Error(ErrorKind::data, "unexpected answer from the coordinator: not a JSON object");
  return json;
}

}  // namespace isthmus::app
