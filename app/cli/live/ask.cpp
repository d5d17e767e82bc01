#include "cli/live/ask.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/net/coordinator/control_client.h"
#include "launch/launch_folder.h"
#include "launch/sites/launch_sites.h"
#include "run/experiment/identity.h"

namespace isthmus::app {

void add_operator(CLI::App& verb, OperatorOptions& options) {
  verb.add_option("--coordinator", options.coordinator,
                  "HOST:PORT of the coordinator; overrides network.coordinator");
  verb.add_option("--name", options.name, "name of your certificate: operator, or operator-NAME")
      ->capture_default_str();
}

namespace {

/// A run's folder has its config, its secret, and the port that `launch` gave its coordinator.
Experiment load(const OperatorOptions& options) {
  const std::filesystem::path config = options.config;
  if (!std::filesystem::is_directory(config))
    return load_experiment(config, options.assignments(), std::nullopt, Purpose::benchmark);
  auto experiment =
      load_experiment(config / "config.yaml", options.assignments(), std::nullopt, Purpose::benchmark);
  move_to(experiment, config);
  auto& coordinator = experiment.network.coordinator;
  coordinator = coordinator_address(coordinator, LaunchFolder::kept_port(config));
  return experiment;
}

}  // namespace

LiveRun::LiveRun(const OperatorOptions& options) : knows_run_(!options.config.empty()), name_(options.name) {
  if (!knows_run_ && options.coordinator.empty())
    throw Error(ErrorKind::config,
                "the coordinator's address is not known; pass the run's config or folder, or --coordinator");
  experiment_ = load(options);
  const bool has_secret = !experiment_.network.secret.empty();
  take_identity(name_, experiment_);
  const auto& secret = experiment_.network.secret;
  if (!has_secret && !secret.empty() && !std::filesystem::exists(secret))
    config_error(
        fmt::format("there is no {}, the run's secret: run.out is relative to the folder in which a command "
                    "runs; pass the run's folder instead of its config, or --secret FILE, or --certs FOLDER",
                    secret));
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
