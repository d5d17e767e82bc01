#include "cli/files/init_command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "cli/files/new_config.h"
#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/say.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "launch/sites/ssh_command.h"
#include "run/experiment/experiment.h"
#include "run/output/json_output.h"
#include "run/output/terminal.h"
#include "run/process/machine.h"
#include "run/process/names.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using outer_sync::tls::Authority;

namespace {

constexpr int certificate_days = 365;

struct InitFlags {
  std::string recipe, sites, data, coordinator, name, out;
  fs::path certs_parent;
  bool certs = false, no_certs = false, json = false;
};

/// Finds values that were not given as flags.
class Questions {
 public:
  explicit Questions(bool asks) : asks_(asks) {}

  struct Question {
    std::string flag, text, fallback;
  };
  /// `parse` of the flag's value or, in a terminal, of the first answer that it accepts; an empty answer
  /// means the fallback. Throws Error(config) naming the flag.
  template <class Parse>
  auto value(const Question& question, const std::string& given, const Parse& parse) const {
    if (!given.empty()) return parse(given);
    if (!asks_)
      config_error(
          fmt::format("{0} is missing ({1}); pass {0}, or run `isthmus init` in a terminal, where it asks",
                      question.flag, question.text));
    for (;;) {
      say_to(stdout, fmt::format("{} [{}]: ", question.text, question.fallback));
      std::string answer;
      if (!std::getline(std::cin, answer))
        config_error(fmt::format("no answer for {}: standard input has ended", question.flag));
      try {
        return parse(answer.empty() ? question.fallback : answer);
      } catch (const Error& error) {
        say_error(error.what());
      }
    }
  }

 private:
  bool asks_;
};

fs::path file_of(const InitFlags& flags, const std::string& run) {
  return flags.out.empty() ? run + ".yaml" : flags.out;
}

/// Throws Error(config) if the file exists: nothing is overwritten.
void check_new_file(const fs::path& out) {
  std::error_code error;
  if (out.native().starts_with('-'))
    config_error(
        fmt::format("--out is '{}'; expected a file name that does not begin with '-'", out.string()));
  if (fs::symlink_status(out, error).type() != fs::file_type::not_found)
    config_error(fmt::format(
        "{} exists, and init overwrites nothing; choose another run with --name, or another file with --out",
        out.string()));
}

NewRun new_run(const InitFlags& flags, bool asks) {
  const Questions ask(asks);
  NewRun run;
  run.recipe = ask.value(
      {"--recipe", fmt::format("recipe, one of {}", recipe_names()), std::string(recipes().front().name)},
      flags.recipe, recipe_named);
  const auto name = [&flags](const std::string& text) {
    check_name("--name", text);
    check_new_file(file_of(flags, text));
    return text;
  };
  run.name = flags.name.empty() && !asks
                 ? name(std::string(run.recipe.name))
                 : ask.value({"--name", "name of the run", std::string(run.recipe.name)}, flags.name, name);
  run.sites = ask.value({"--sites", "sites as NAME=USER@HOST[:PORT],..., or NAME for this machine", "a,b"},
                        flags.sites, parse_new_sites);
  run.data = ask.value({"--data", "path of the data, the same at every site", data_of(run.recipe)},
                       flags.data, check_new_data);
  const auto check = [&](const std::string& text) { return check_new_coordinator(text, run.sites); };
  const auto given = flags.coordinator.empty() && !any_elsewhere(run.sites) ? std::string(local_coordinator)
                                                                            : flags.coordinator;
  run.coordinator =
      ask.value({"--coordinator", "HOST:PORT at which the sites reach the coordinator on this machine",
                 machine_name() + ":7000"},
                given, check);
  return run;
}

/// One for each process.
void make_certificates(const Experiment& experiment, const fs::path& folder) {
  const auto authority = Authority::create(folder, experiment.run.name);
  const auto issue = [&](const std::string& name, const std::string& role) {
    (void)authority.issue(name, certificate_days, outer_sync::tls::role_for(name, role));
  };
  for (const auto& name : {std::string(outer_sync::tls::coordinator_name), std::string("operator")})
    issue(name, "");
  for (const auto& name : worker_names(experiment)) issue(name, "");
  for (const auto& name : reducer_names(experiment)) issue(name, "reducer");
  issue(std::string(watcher_name), "observer");
}

/// Throws Error(config) if the run's certificates exist: nothing is overwritten.
void check_new_certificates(const fs::path& authority) {
  std::error_code error;
  if (fs::exists(authority, error))
    config_error(
        fmt::format("{} exists, and init overwrites nothing; choose another run with --name, or keep "
                    "these certificates with --no-certs",
                    authority.string()));
}

/// Writes the config and makes the certificates, or leaves nothing behind. Neither existed a moment ago.
void write_run(const NewRun& run, const std::string& text, const fs::path& out, bool makes_certificates) {
  const File file(out, File::Mode::secret);  // for this account alone: it may get a secret
  bool has_begun = false;
  try {
    file.write(std::as_bytes(std::span(text)));
    file.sync();
    const auto experiment = load_experiment(out, {});
    has_begun = makes_certificates;
    if (makes_certificates) make_certificates(experiment, run.certs);
  } catch (...) {
    std::error_code ignored;
    fs::remove(out, ignored);
    if (has_begun) fs::remove_all(run.certs, ignored);
    throw;
  }
}

std::string as_word(const std::string& text) {
  const bool plain = text.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                         "._-/+:,@%") == text.npos;
  return plain ? text : shell_word(text);
}

int make_run(const InitFlags& flags) {
  const bool asks = !flags.json && Terminal::there();
  JsonOutput json(flags.json);
  auto run = new_run(flags, asks);
  // Without certificates, members of a run on one machine prove themselves by a secret.
  const bool has_certificates = flags.certs || is_reachable(run);
  if (has_certificates) run.certs = (flags.certs_parent / run.name).string();
  const bool makes_certificates = has_certificates && !flags.no_certs;
  const auto text = new_config(run);
  const auto out = file_of(flags, run.name);
  if (makes_certificates) check_new_certificates(run.certs);
  write_run(run, text, out, makes_certificates);

  const auto file = as_word(out.string());
  std::string sites;
  for (const auto& site : run.sites) sites += (sites.empty() ? "" : ", ") + site.name;
  say_line(fmt::format("{}: recipe {}, sites {}.", out.string(), run.recipe.name, sites));
  if (makes_certificates)
    say_line(fmt::format("{}: its certificates. Keep ca.key there secret: anyone with it can join the run.",
                         run.certs));
  const auto* waits = std::ranges::any_of(run.sites, &NewSite::by_hand) ? " --wait 600" : "";
  std::vector<std::pair<std::string, std::string>> next = {
      {fmt::format("isthmus doctor {}{}", file, waits), "checks the machines and the links between them"},
      {fmt::format("isthmus launch {}", file), "starts the run at all sites"},
      {fmt::format("isthmus top {}", file), "shows its progress, in another terminal"}};
  for (const auto& site : run.sites) {
    if (!site.by_hand) continue;
    say_line(fmt::format("{}: copy {} and the folder {}/{} to this site, under the same names.", site.name,
                         out.string(), run.certs, site.name));
    next.insert(next.begin() + 1, {fmt::format("isthmus doctor {}{} --name {}", file, waits, site.name),
                                   fmt::format("at {}, meanwhile", site.name)});
    next.insert(next.end() - 1, {fmt::format("isthmus worker {} --name {}", file, site.name),
                                 fmt::format("at {}: starts its worker", site.name)});
  }
  auto commands = nlohmann::ordered_json::array();
  say_line("Next:");
  const auto longest = std::ranges::max(next, {}, [](const auto& one) { return one.first.size(); });
  for (const auto& [command, does] : next) {
    say_line(fmt::format("  {:<{}}  # {}", command, longest.first.size(), does));
    commands.push_back(command);
  }
  json.print({{"file", out.string()},
              {"run", run.name},
              {"recipe", run.recipe.name},
              {"certificates", makes_certificates ? run.certs : ""},
              {"next", commands}});
  return 0;
}

}  // namespace

void add_init(CommandLine& commands) {
  auto* verb = commands.app().add_subcommand(
      "init", "write the config of a new run from a recipe, and make its certificates");
  const auto flags = std::make_shared<InitFlags>();
  verb->add_option(
      "--sites", flags->sites,
      "sites as NAME=USER@HOST[:PORT],...; a NAME alone is a site on this machine; NAME=by-hand is behind "
      "NAT, and you start its worker there. PORT is where a worker listens, by default 7001, or the next "
      "free one if sites share a host. In a terminal, init asks for options that are missing");
  verb->add_option("--recipe", flags->recipe, fmt::format("model and settings: {}", recipe_names()));
  verb->add_option("--data", flags->data, "data.path at every site");
  verb->add_option("--coordinator", flags->coordinator,
                   "HOST:PORT at which the sites reach the coordinator, which `launch` starts on this "
                   "machine; needed if a site is elsewhere");
  verb->add_option("--name", flags->name, "name of the run; the recipe's name by default");
  verb->add_option("--out", flags->out,
                   "file to write, NAME.yaml by default; a file that exists is never overwritten");
  auto* certs = verb->add_flag("--certs", flags->certs,
                               "make certificates; the default if other machines can reach the run");
  verb->add_flag("--no-certs", flags->no_certs,
                 "make no certificates: make them with `isthmus certs`, or keep those of an earlier init")
      ->excludes(certs);
  verb->add_option("--dir", flags->certs_parent, "parent folder of the runs' certificates")
      ->default_val("certs");
  add_json(*verb, flags->json);
  verb->footer(
      "Example: isthmus init --recipe gpt2-124m --sites eu=me@eu.example,us=me@us.example --data "
      "/data/train.bin --coordinator home.example:7000");
  commands.on(*verb, [flags] { return make_run(*flags); });
}

}  // namespace isthmus::app
