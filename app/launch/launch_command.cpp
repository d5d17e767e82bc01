#include "launch/launch_command.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "isthmus/base/error.h"
#include "launch/agent/model_giver.h"
#include "launch/agent/site_agent.h"
#include "launch/agent/tether.h"
#include "launch/detach.h"
#include "launch/launch.h"
#include "launch/schedulers/render.h"

namespace isthmus::app {

namespace {

struct LaunchFlags {
  std::string config, resume, render, to;
  bool detach = false;
  LaunchRequest launch;
};

std::vector<std::string> command_again(const LaunchFlags& flags) {
  auto command = flags.launch.program;
  command.emplace_back("launch");
  if (!flags.resume.empty()) command.emplace_back("--resume");
  command.push_back(flags.launch.config.string());
  for (const auto& assignment : flags.launch.assignments)
    command.insert(command.end(), {"--set", assignment});
  return command;
}

int run_launch_verb(LaunchFlags flags) {
  auto& launch = flags.launch;
  launch.resume = !flags.resume.empty();
  if (launch.resume != flags.config.empty())
    config_error("launch needs a config file, or --resume FOLDER, and not both");
  launch.config = launch.resume ? flags.resume : flags.config;
  if (!flags.render.empty())
    return run_render({.config = {launch.config, launch.assignments},
                       .kind = flags.render,
                       .to = flags.to,
                       .json = launch.json});
  if (flags.detach) return run_detached(command_again(flags), launch.json);
  return run_launch(launch);
}

}  // namespace

void add_launch(CommandLine& commands) {
  auto flags = std::make_shared<LaunchFlags>();
  auto* verb = commands.app().add_subcommand(
      "launch", "start a coordinator and all replicas of an experiment, here and by ssh at its sites");
  add_config_file(*verb, flags->config);
  verb->add_option("--resume", flags->resume, "resume the run in this folder from its newest checkpoint");
  verb->add_option("--set", flags->launch.assignments, "override a config key with KEY=VALUE (repeatable)")
      ->allow_extra_args(false);
  auto* detach = verb->add_flag("--detach", flags->detach,
                                "run in the background; `isthmus attach` shows it and stops it");
  auto* render = verb->add_option("--render", flags->render,
                                  "start nothing; write batch scripts or manifests for slurm or kubernetes")
                     ->check(CLI::IsMember({"slurm", "kubernetes"}))
                     ->excludes(detach);
  verb->add_option("--out,--to", flags->to, "output folder of --render; NAME-slurm by default")
      ->needs(render);
  add_json(*verb, flags->launch.json);
  verb->add_option("--started-fd", flags->launch.started_fd)->group("");
  verb->footer("Example: isthmus launch configs/quickstart.yaml --set outer.sync_every=60");
  commands.on(*verb, [&commands, flags] {
    flags->launch.program = commands.program();
    return run_launch_verb(*flags);
  });
}

void add_attach(CommandLine& commands) {
  auto request = std::make_shared<AttachRequest>();
  auto* verb = commands.app().add_subcommand("attach", "show or stop a detached launch");
  verb->add_option("run", request->folder, "folder of the run")->required();
  verb->add_flag("--stop", request->stop,
                 "stop the run at one step, with a checkpoint, and follow it to the end");
  verb->add_flag("--all", request->all, "show the log from the beginning");
  verb->footer("Example: isthmus attach runs/two-sites");
  commands.on(*verb, [request] { return run_attach(*request); });
}

void add_tether(CommandLine& commands) {
  auto request = std::make_shared<TetherRequest>();
  auto* verb =
      commands.app().add_subcommand("tether", "connect a launch with the agent of a site")->group("");
  verb->add_option("--folder", request->folder, "folder of runs")->required();
  verb->add_option("--run", request->agent.run, "name of the run")->required();
  verb->add_option("--site", request->agent.site, "name of the site")->required();
  verb->add_option("--silence", request->agent.silence,
                   "seconds without the launch after which the agent ends its processes")
      ->capture_default_str();
  verb->add_option("--grace", request->agent.grace, "seconds that the processes then have to end")
      ->capture_default_str();
  verb->add_option("--started-fd", request->started_fd, "run as the agent; receives a line once it listens");
  verb->footer("Example: isthmus tether --folder runs --run two-sites --site eu");
  commands.on(*verb, [&commands, request] {
    request->build = commands.build();
    request->program = commands.program();
    return request->started_fd >= 0 ? run_site_agent(*request) : run_tether(*request);
  });
}

void add_give_model(CommandLine& commands) {
  auto request = std::make_shared<GiveRequest>();
  auto* verb = commands.app()
                   .add_subcommand("give-model", "give a run's checkpoints to the machine of its launch")
                   ->group("");
  verb->add_option("--folder", request->folder, "folder of runs")->required();
  verb->add_option("--run", request->run, "name of the run")->required();
  verb->add_option("--site", request->site, "name of the site")->required();
  verb->footer("Example: isthmus give-model --folder runs --run two-sites --site eu");
  commands.on(*verb, [&commands, request] {
    request->build = commands.build();
    return run_give_model(*request);
  });
}

}  // namespace isthmus::app
