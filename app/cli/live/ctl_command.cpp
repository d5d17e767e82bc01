#include "cli/live/ctl_command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "cli/live/ask.h"
#include "coordinator/run_status.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text.h"
#include "run/experiment/current_names.h"
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
  std::string first;               ///< the first word of `set` and `drain`
  std::vector<std::string> words;  ///< those after it
  bool json = false;
};

/// `set` and `drain` take a config and further words. Each of the two may be left out, and the config may
/// also follow --config, so the first word is the config if it looks like a file.
void add_config_and_words(CLI::App& verb, CtlFlags& flags, const char* words, const char* meaning) {
  verb.add_option("config", flags.first,
                  std::string(operators_config) + "; a file's name ends in .yaml or .yml");
  verb.add_option("--config", flags.run.config)->group("");
  verb.add_option(words, flags.words, meaning);
}

bool is_config(const std::string& word) {
  if (word.find('=') != std::string::npos) return false;
  return word.ends_with(".yaml") || word.ends_with(".yml") ||
         std::filesystem::exists(std::filesystem::path(word) / "config.yaml");
}

void sort_words(CtlFlags& flags) {
  auto& arguments = flags.command.arguments;
  if (flags.run.config.empty() && is_config(flags.first))
    flags.run.config = flags.first;
  else if (!flags.first.empty())
    arguments.push_back(flags.first);
  arguments.insert(arguments.end(), flags.words.begin(), flags.words.end());
  if (flags.command.verb == "set") {
    std::set<std::string> keys;
    for (auto& assignment : arguments) {
      const auto equals = std::min(assignment.find('='), assignment.size());
      auto key = current_key(assignment.substr(0, equals));
      if (!keys.insert(key).second) config_error(key + " is given twice; expected one value for each key");
      assignment = std::move(key) + assignment.substr(equals);
    }
  }
  if (!arguments.empty()) return;
  if (flags.command.verb == "set") config_error("nothing to set; expected KEY=VALUE after the config");
  if (flags.command.verb == "drain")
    config_error("nothing to drain; expected a worker or site after the config");
}

int run_ctl_verb(CtlFlags& flags) {
  sort_words(flags);
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
  const auto add = [&](const char* name, const char* help, const char* example) {
    auto* verb = ctl->add_subcommand(name, help);
    add_operator(*verb, flags->run);
    add_json(*verb, flags->json);
    add_security(*verb, flags->run);
    verb->footer(fmt::format("Example: isthmus ctl {}", example));
    commands.on(*verb, [flags, name] {
      flags->command.verb = name;
      return run_ctl_verb(*flags);
    });
    return verb;
  };
  const auto add_plain = [&](const char* name, const char* help, const char* example) {
    add_config_file(*add(name, help, example), flags->run.config, operators_config);
  };
  add_plain("status", "show members, their rates, and problems", "status two_sites.yaml");
  auto* set = add("set", "change settings of a live run, at the same step everywhere",
                  "set two_sites.yaml outer.sync_every=60");
  add_config_and_words(*set, *flags, "assignments", "settings to change, as KEY=VALUE");
  set->add_option("--at", flags->command.at,
                  "apply the change after this step; by default as soon as every member can");
  set->add_option("--member", flags->command.member,
                  "worker or site to change, for keys that may differ between members; by default all");
  add_plain("pause", "pause all members at the same step", "pause two_sites.yaml");
  add_plain("resume", "continue a paused run", "resume two_sites.yaml");
  add_plain("checkpoint", "write a checkpoint on every member at the same step", "checkpoint two_sites.yaml");
  add_plain("stop", "stop the run at one step, with a checkpoint on every member", "stop two_sites.yaml");
  auto* drain = add("drain", "make workers leave the run, with a checkpoint", "drain two_sites.yaml us-1");
  add_config_and_words(*drain, *flags, "names", "workers or sites that leave");
  ctl->footer("Example: isthmus ctl status two_sites.yaml");
}

}  // namespace isthmus::app
