#include "cli/ctl_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "coordinator/run_status.h"
#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text.h"
#include "isthmus/outer_sync/net/coordinator/control_client.h"
#include "run/experiment/identity.h"
#include "run/output/json_output.h"

namespace isthmus::app {
namespace {

/// "after_step 250, set outer.sync_every=60"
std::string sentence_of(const nlohmann::json& answer) {
  std::string out;
  for (const auto& [key, value] : answer.items()) {
    auto words = key;
    std::ranges::replace(words, '_', ' ');
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", words,
                       value.is_string() ? value.get<std::string>() : value.dump());
  }
  return out + "\n";
}

int run_ctl(const CtlRequest& request, Experiment experiment, bool has_config) {
  JsonOutput output(request.json);
  take_identity(request.name, experiment);
  outer_sync::protocol::Command command;
  if (has_config) command.run = experiment.run.name;
  command.by = request.name;
  command.verb = request.verb;
  command.arguments = request.arguments;
  command.at = request.at;
  command.member = request.member;
  const auto answer = outer_sync::ask(experiment.network, command);
  if (!answer.problem.empty()) throw Error(ErrorKind::config, answer.problem);
  const auto json = nlohmann::json::parse(answer.text, nullptr, false);
  if (!json.is_object())
    throw Error(ErrorKind::data, "unexpected answer from the coordinator: not a JSON object");
  output.print(json);
  if (request.json) return 0;
  const auto text = request.verb == "status" ? status_table(json) : sentence_of(json);
  say_to(stdout, printable_lines(text));
  return 0;
}

CLI::App* add_verb(CommandLine& commands, CLI::App& ctl, CtlRequest& request, const char* name,
                   const char* help, const char* example) {
  auto& flags = commands.flags();
  auto* verb = ctl.add_subcommand(name, help);
  verb->add_option("--coordinator", flags.coordinator,
                   "HOST:PORT of the coordinator; overrides network.coordinator");
  verb->add_option("--config", flags.config,
                   "the run's experiment in YAML, for its address and certificates");
  verb->add_option("--name", request.name, "name of your certificate: operator, or operator-NAME")
      ->capture_default_str();
  commands.add_json(*verb);
  commands.add_security(*verb);
  verb->footer(std::string("Example: isthmus ctl ") + example);
  commands.on(*verb, [&commands, &request, &flags, name] {
    if (flags.config.empty() && flags.coordinator.empty())
      throw Error(ErrorKind::config,
                  "the coordinator's address is not known; pass --coordinator or --config");
    request.verb = name;
    request.json = flags.json;
    return run_ctl(request, commands.load(std::nullopt, Purpose::benchmark), !flags.config.empty());
  });
  return verb;
}

}  // namespace

void add_ctl(CommandLine& commands, CtlRequest& request) {
  auto* ctl = commands.app().add_subcommand("ctl", "show the status of a live run, and control it");
  ctl->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, const char* example) {
    return add_verb(commands, *ctl, request, name, help, example);
  };
  add("status", "show members, their rates, and problems",
      "status --coordinator eu.example:7000 --certs certs/my");
  auto* set = add("set", "change settings of a live run, at the same step everywhere",
                  "set outer.sync_every=60 --config two_sites.yaml");
  set->add_option("assignments", request.arguments, "KEY=VALUE")->required();
  set->add_option("--at", request.at,
                  "apply the change after this step; by default as soon as every member can");
  set->add_option("--member", request.member,
                  "worker or site to change, for keys that may differ between members; by default all");
  add("pause", "pause all members at the same step", "pause --config two_sites.yaml");
  add("resume", "continue a paused run", "resume --config two_sites.yaml");
  add("checkpoint", "write a checkpoint on every member at the same step",
      "checkpoint --config two_sites.yaml");
  add("stop", "stop the run at one step, with a checkpoint on every member", "stop --config two_sites.yaml");
  auto* drain =
      add("drain", "make workers leave the run, with a checkpoint", "drain us-1 --config two_sites.yaml");
  drain->add_option("names", request.arguments, "names of workers or sites")->required();
  ctl->footer("Example: isthmus ctl status --config two_sites.yaml");
}

}  // namespace isthmus::app
