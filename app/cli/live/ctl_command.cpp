#include "cli/live/ctl_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/live/ask.h"
#include "coordinator/run_status.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text.h"
#include "run/output/json_output.h"

namespace isthmus::app {
namespace {

/// "after step 250, set outer.sync_every=60"; of {"resumed": true} it is "resumed".
std::string sentence_of(const nlohmann::json& answer) {
  std::string out;
  for (const auto& [key, value] : answer.items()) {
    auto words = key;
    std::ranges::replace(words, '_', ' ');
    out += (out.empty() ? "" : ", ") + words;
    if (value != true) out += " " + (value.is_string() ? value.get<std::string>() : value.dump());
  }
  return out + "\n";
}

struct CtlFlags {
  OperatorOptions run;
  outer_sync::protocol::Command command;
  bool json = false;
};

int act(const CtlFlags& flags) {
  const LiveRun run(flags.run);
  JsonOutput output(flags.json);
  const auto json = run.ask(flags.command, std::chrono::seconds(60));
  output.print(json);
  if (flags.json) return 0;
  const auto text = flags.command.verb == "status" ? status_table(json) : sentence_of(json);
  say_to(stdout, printable_lines(text));
  return 0;
}

}  // namespace

void add_ctl(CommandLine& commands) {
  auto* ctl = commands.app().add_subcommand("ctl", "show the status of a live run, and control it");
  ctl->require_subcommand(1);
  const auto flags = std::make_shared<CtlFlags>();
  auto& command = flags->command;
  const auto add = [&](const char* name, const char* help, const char* example) {
    auto* verb = ctl->add_subcommand(name, help);
    add_operator(*verb, flags->run);
    add_json(*verb, flags->json);
    add_security(*verb, flags->run);
    verb->footer(fmt::format("Example: isthmus ctl {}", example));
    commands.on(*verb, [flags, name] {
      flags->command.verb = name;
      return act(*flags);
    });
    return verb;
  };
  add("status", "show members, their rates, and problems",
      "status --coordinator eu.example:7000 --certs certs/my");
  auto* set = add("set", "change settings of a live run, at the same step everywhere",
                  "set outer.sync_every=60 --config two_sites.yaml");
  set->add_option("assignments", command.arguments, "KEY=VALUE")->required();
  set->add_option("--at", command.at,
                  "apply the change after this step; by default as soon as every member can");
  set->add_option("--member", command.member,
                  "worker or site to change, for keys that may differ between members; by default all");
  add("pause", "pause all members at the same step", "pause --config two_sites.yaml");
  add("resume", "continue a paused run", "resume --config two_sites.yaml");
  add("checkpoint", "write a checkpoint on every member at the same step",
      "checkpoint --config two_sites.yaml");
  add("stop", "stop the run at one step, with a checkpoint on every member", "stop --config two_sites.yaml");
  auto* drain =
      add("drain", "make workers leave the run, with a checkpoint", "drain us-1 --config two_sites.yaml");
  drain->add_option("names", command.arguments, "names of workers or sites")->required();
  ctl->footer("Example: isthmus ctl status --config two_sites.yaml");
}

}  // namespace isthmus::app
