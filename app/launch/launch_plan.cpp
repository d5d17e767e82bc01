#include "launch/launch_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "isthmus/base/say.h"
#include "plan/choose.h"
#include "run/process/joined.h"
#include "run/process/machine.h"

namespace isthmus::app {

using Kind = LauncherConfig::Kind;

LaunchPlan::LaunchPlan(const LaunchRequest& request)
    : request_(request), experiment_(load()), places_(find_places(experiment_, config())) {
  check_reach(config(), experiment_);
  if (experiment_.trainer.threads > 0 || places_.processes == 0) return;
  // Other machines have other cores, so with remote sites the number is not put into the config.
  (has_remote_sites() ? threads_here_ : experiment_.trainer.threads) = threads_each(places_.processes);
}

Experiment LaunchPlan::load() const {
  auto loaded = load_and_choose(config().file, request_.assignments);
  if (!loaded.chosen.empty()) say_line(loaded.chosen);
  auto experiment = std::move(loaded.experiment);
  if (request_.resume) move_to(experiment, request_.config);
  return experiment;
}

LaunchConfig LaunchPlan::config() const {
  return {request_.resume ? request_.config / "config.yaml" : request_.config, request_.assignments};
}

std::vector<std::string> LaunchPlan::reducers() const { return reducer_names(experiment_); }

bool LaunchPlan::is_reducer(const std::string& name) const {
  const auto names = reducers();
  return std::ranges::find(names, name) != names.end();
}

bool LaunchPlan::has_remote_sites() const {
  return std::ranges::any_of(experiment_.sites, [](const Site& site) { return site.is_elsewhere(); });
}

Place LaunchPlan::place_of(const std::string& name) const {
  const auto found = places_.of.find(name);
  return found == places_.of.end() ? Place{} : found->second;
}

bool LaunchPlan::is_started_here(const std::string& worker) const {
  const auto* site = places_.of.at(worker).site;
  return site == nullptr || site->launch.kind() == Kind::local || site->launch.kind() == Kind::ssh;
}

bool LaunchPlan::starts_all() const {
  return std::ranges::all_of(worker_names(experiment_),
                             [this](const auto& name) { return is_started_here(name); });
}

std::string line_about_awaited(const Site& site, bool resumes) {
  const auto kind = site.launch.kind();
  const auto workers = joined(site.workers(), ", ");
  if (kind == Kind::slurm || kind == Kind::kubernetes)
    return fmt::format(
        "site {} is started by {}: the run waits for {}; launch --render {} writes the files "
        "that start them",
        site.name, to_string(kind), workers, to_string(kind));
  if (kind != Kind::by_hand) return {};
  auto line =
      fmt::format("site {} is started by hand: the run waits for {}; start there:", site.name, workers);
  for (const auto& name : site.workers())
    line += fmt::format("\n  isthmus worker CONFIG --name {}{}", name, resumes ? " --resume" : "");
  return line;
}

std::string LaunchPlan::listen_address(const std::string& address) const {
  return has_remote_sites() ? coordinator_listen(address) : address;
}

std::vector<std::string> LaunchPlan::coordinator_command(const std::filesystem::path& config,
                                                         bool resume) const {
  auto command = request_.program;
  command.insert(command.end(), {"coordinator", "--config", config.string()});
  if (resume) command.emplace_back("--resume");
  return command;
}

std::vector<std::string> LaunchPlan::worker_command(const std::string& name,
                                                    const std::filesystem::path& config,
                                                    const std::string& coordinator) const {
  auto command = request_.program;
  command.insert(command.end(), {"worker", "--quiet", "--config", std::filesystem::absolute(config).string(),
                                 "--coordinator", coordinator, "--name", name});
  if (threads_here_ > 0)
    command.insert(command.end(), {"--set", fmt::format("trainer.threads={}", threads_here_)});
  if (const auto place = place_of(name); place.index > 0) {
    const auto& own = experiment_.sites.empty()
                          ? experiment_
                          : load_experiment(this->config().file, request_.assignments, WorkerPlace{name, {}});
    add_ports(command, own.network, place.index);
  }
  if (is_reducer(name)) command.emplace_back("--reduce-only");
  return command;
}

}  // namespace isthmus::app
