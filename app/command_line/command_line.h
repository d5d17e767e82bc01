#pragma once
// The command line of a program. Each verb adds itself, with options of its own; then `run` reads the
// arguments and calls the verb that they name. The options that several verbs share are below.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "run/output/version.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace isthmus::app {

class CommandLine {
 public:
  /// `torch` is the value of --torch; processes that this one starts get it too.
  CommandLine(const std::string& description, TrainerBuild trainer, std::string torch = {});
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  [[nodiscard]] CLI::App& app() { return *app_; }
  /// Adds a paragraph above the last ones of the program's help.
  void add_to_help(const std::string& paragraph);
  /// Sets what the verb does after the command line has been parsed.
  void on(CLI::App& verb, std::function<int()> act);
  /// The build of this binary, for messages about different builds.
  [[nodiscard]] std::string build() const { return build_name(trainer_); }
  /// The first words of a command that runs this binary again.
  [[nodiscard]] std::vector<std::string> program() const;
  /// `ask` is called with the verb's name before the verb acts. If it returns an exit status, the verb does
  /// not act.
  void before(std::function<std::optional<int>(const std::string& verb)> ask) { ask_ = std::move(ask); }

  /// Returns the exit status; prints errors on standard error. Call it once, after all verbs are added.
  [[nodiscard]] int run(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
  TrainerBuild trainer_;
  std::string torch_;
  std::function<int()> act_;
  std::function<std::optional<int>(const std::string&)> ask_;
};

/// The config file of a verb, and the options that override its keys.
struct ConfigOptions {
  std::string config;
  std::vector<std::string> set;
  std::string coordinator, listen, advertise, certs, secret;
  bool insecure = false;

  /// The overridden keys, as KEY=VALUE.
  [[nodiscard]] std::vector<std::string> assignments() const;
};

/// The verb's config file, as an argument. The spelling of earlier releases, `--config FILE`, is accepted
/// too: `launch` writes it, for older builds at its sites.
CLI::Option* add_config_file(CLI::App& verb, std::string& file,
                             const std::string& meaning = "experiment in YAML");
void add_set(CLI::App& verb, std::vector<std::string>& set);
/// --certs, --secret and --insecure.
void add_security(CLI::App& verb, ConfigOptions& options);
/// The verb makes a JsonOutput from `json`.
CLI::Option* add_json(CLI::App& verb, bool& json);

}  // namespace isthmus::app
