#include "command_line/command_line.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "command_line/help_text.h"
#include "command_line/mistakes.h"
#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "isthmus/outer_sync/tls/join_token.h"
#include "run/output/exit_codes.h"
#include "run/process/machine.h"
#include "run/process/process.h"

namespace isthmus::app {

namespace {

/// Verbs of earlier releases, with the command that replaces each.
struct RemovedVerb {
  std::string_view verb, part, now;
};
constexpr auto removed_verbs = std::to_array<RemovedVerb>({
    {"config", "explain", "isthmus config --explain KEY"},
    {"config", "diff", "isthmus config A --diff B"},
    {"trace", "summary", "isthmus trace FILE"},
});

void refuse_removed_verbs(int argc, char** argv) {
  if (argc < 3) return;
  for (const auto& [verb, part, now] : removed_verbs) {
    if (argv[1] == verb && argv[2] == part)
      throw Error(ErrorKind::config, fmt::format("`isthmus {} {}` is now `{}`", verb, part, now));
  }
}

/// "Exit status: 0 done, 2 config, ...", for the end of --help.
std::string exit_status_line() {
  std::string line = "Exit status:";
  for (const auto& [status, name, meaning] : exit_codes)
    line += fmt::format("{} {} {}", status == 0 ? "" : ",", status, name);
  return line;
}

/// Reports a command line that CLI11 did not accept, or prints the help or version that it asks for. Returns
/// the exit status.
int refused(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    const bool is_help = error.get_name() == "CallForHelp";
    std::fputs((is_help ? named_verb(app).help() : error.what() + std::string("\n")).c_str(), stdout);
    return 0;
  }
  const auto& verb = named_verb(app);
  const bool lacks_verb = verb.get_require_subcommand_min() > 0 && app.remaining(true).empty();
  if (lacks_verb)
    std::fputs(verb.help().c_str(), stderr);
  else
    say_error("isthmus: " + message_of(app, error));
  return exit_status(ErrorKind::config);
}

/// Every account of the machine can read a process's command line for as long as the process runs.
void hide_tokens(std::span<char*> arguments) {
  for (char* argument : arguments) {
    const std::string_view text(argument);
    if (text.starts_with(outer_sync::tls::token_prefix)) std::fill_n(argument, text.size(), '*');
  }
}

}  // namespace

namespace {

/// For messages. There may be no /proc.
std::string own_name() {
  try {
    return own_program().filename().string();
  } catch (const Error&) {
    return "isthmus";
  }
}

}  // namespace

CommandLine::CommandLine(const std::string& description, TrainerBuild trainer, std::string torch)
    : app_(std::make_unique<CLI::App>(description, own_name())),
      trainer_(std::move(trainer)),
      torch_(std::move(torch)) {
  app_->formatter(std::make_shared<HelpText>());  // before the verbs, which inherit it
  app_->set_help_flag("-h,--help", "print this help and exit");
  app_->set_version_flag("--version", version_text(trainer_), "print the version and exit");
  app_->require_subcommand(1);
  app_->footer(exit_status_line());
}

CommandLine::~CommandLine() = default;

void CommandLine::add_to_help(const std::string& paragraph) {
  app_->footer(paragraph + "\n\n" + app_->get_footer());
}

std::vector<std::string> CommandLine::program() const {
  std::vector<std::string> words = {own_program().string()};
  if (!torch_.empty()) words.insert(words.end(), {"--torch", torch_});
  return words;
}

void CommandLine::on(CLI::App& verb, std::function<int()> act) {
  verb.callback([this, act = std::move(act)] { act_ = act; });
}

int CommandLine::run(int argc, char** argv) {
  open_standard_descriptors();
  try {
    refuse_removed_verbs(argc, argv);
    refuse_unknown_verbs(*app_, {argv + std::min(argc, 1), argv + argc});
    app_->parse(argc, argv);
    if (ask_) {
      if (const auto status = ask_(app_->get_subcommands().front()->get_name())) return *status;
    }
    hide_tokens({argv, static_cast<std::size_t>(argc)});  // not earlier: `ask_` may read the arguments again
    const auto act = act_;  // `help --check` parses other command lines while it acts
    return act();
  } catch (const CLI::ParseError& error) {
    return refused(*app_, error);
  } catch (const isthmus::Error& error) {
    say_error(std::string("isthmus: ") + error.what());
    return error.exit_status();
  } catch (const std::exception& error) {
    say_error(std::string("isthmus: ") + error.what());
    return 1;
  }
}

std::vector<std::string> ConfigOptions::assignments() const {
  auto assignments = set;
  for (const auto& [key, value] : {std::pair("coordinator", &coordinator),
                                   {"listen", &listen},
                                   {"advertise", &advertise},
                                   {"certs", &certs},
                                   {"secret", &secret}}) {
    if (!value->empty()) assignments.push_back(fmt::format("network.{}=\"{}\"", key, *value));
  }
  if (insecure) assignments.emplace_back("network.insecure=true");
  return assignments;
}

CLI::Option* add_config_file(CLI::App& verb, std::string& file, const std::string& meaning) {
  return verb.add_option("config,--config", file, meaning);
}

void add_set(CLI::App& verb, std::vector<std::string>& set) {
  verb.add_option("--set", set, "override a config key with KEY=VALUE (repeatable)")->allow_extra_args(false);
}

void add_security(CLI::App& verb, ConfigOptions& options) {
  verb.add_option("--certs", options.certs, "folder of certificates; overrides network.certs");
  verb.add_option("--secret", options.secret,
                  "file with the run's secret (RUN/run.secret on this machine); overrides network.secret");
  verb.add_flag("--insecure", options.insecure,
                "run without certificates: anyone on the network path can read and change all traffic, and "
                "join the run");
}

CLI::Option* add_json(CLI::App& verb, bool& json) {
  return verb.add_flag("--json", json,
                       "print one JSON document on standard output, and messages on standard error");
}

}  // namespace isthmus::app
