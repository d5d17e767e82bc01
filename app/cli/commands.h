#pragma once
// The command line: verbs and their flags, which both binaries share. Each verb's work is in a file of its
// name.

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/config_command.h"
#include "cli/data_command.h"
#include "cli/help_command.h"
#include "run/certs.h"
#include "run/version.h"
#include "worker/worker.h"

namespace isthmus::app {

struct Flags {
  std::string config, coordinator, name, site, listen, advertise, certs, secret, log, out;
  std::vector<std::string> set, given_up;
  bool resume = false, recover = false, quiet = false, reduce_only = false, once = false, insecure = false,
       json = false;
  CertsRequest authority;
  DataRequest data;
  ConfigRequest config_request;
  HelpRequest help;
  std::string shell;  ///< of completion
  int announce_fd = -1;
  std::optional<std::uint64_t> until;
  // of trained models:
  std::string model, corpus, prompt;
  std::uint64_t tokens = 200, seed = 0;
  double temperature = 0.8;
  // of benchmarks:
  std::string params, step_time, role = "all";
  std::int64_t steps = 0, replicas = 0;
  double seconds = 10;
};

/// One binary's command line. Verbs are added, then it is run once.
class CommandLine {
 public:
  /// `torch` is what --torch named, which processes that this one starts are given too.
  CommandLine(const std::string& description, TrainerBuild trainer, std::string torch = {});

  void add_coordinator();
  /// `train` is what a worker without --reduce-only does; a binary that has no trainer gives none.
  void add_worker(std::function<int(WorkerRequest)> train);
  void add_config();
  void add_replay();
  void add_certs();
  void add_data();
  void add_bench();
  void add_trace();
  void add_help();
  void add_completion();

  /// For verbs that one binary alone has.
  [[nodiscard]] CLI::App& app() { return app_; }
  [[nodiscard]] Flags& flags() { return flags_; }
  void add_set(CLI::App& verb);
  void add_security(CLI::App& verb);
  /// Sets `Flags::json`; the verb makes a JsonOutput of it.
  CLI::Option* add_json(CLI::App& verb);
  /// What is done once the command line has been read.
  void on(CLI::App& verb, std::function<int()> act);
  /// What the flags set over the config file, as KEY=VALUE.
  [[nodiscard]] std::vector<std::string> assignments() const;
  /// The experiment that the flags name.
  [[nodiscard]] Experiment load(const std::optional<WorkerPlace>& worker = std::nullopt,
                                Purpose purpose = Purpose::training) const;
  /// What this binary is, for messages about unequal builds.
  [[nodiscard]] std::string build() const { return build_name(trainer_); }
  /// This binary, as a process that it starts is to run it: the first words of a command.
  [[nodiscard]] std::vector<std::string> program() const;
  /// Asked before a verb's own work, with the verb's name; a value is the exit status in its place.
  void before(std::function<std::optional<int>(const std::string& verb)> ask) { ask_ = std::move(ask); }

  /// Exit status; errors are said on standard error.
  [[nodiscard]] int run(int argc, char** argv);

 private:
  /// What `isthmus worker` was given, for a program that trains in its place.
  [[nodiscard]] std::vector<std::string> worker_arguments() const;
  void add_config_parts(CLI::App& verb);
  void add_data_tokenize(CLI::App& data);
  void add_bench_outer(CLI::App& bench);
  void add_bench_loader(CLI::App& bench);
  int bench_outer();

  CLI::App app_;
  TrainerBuild trainer_;
  std::string torch_;
  Flags flags_;
  std::function<int()> act_;
  std::function<std::optional<int>(const std::string&)> ask_;
};

}  // namespace isthmus::app
