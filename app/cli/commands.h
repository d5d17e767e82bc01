#pragma once
// The command line: verbs and flags, which both binaries share. Each verb's work is in a file of its own.

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/certs_command.h"
#include "cli/config_command.h"
#include "cli/data_command.h"
#include "cli/help_command.h"
#include "run/output/version.h"
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
  std::string shell;  ///< for `completion`
  int announce_fd = -1;
  std::optional<std::uint64_t> until;
  // for trained models:
  std::string model, corpus, prompt;
  std::uint64_t tokens = 200, seed = 0;
  double temperature = 0.8;
  // for benchmarks:
  std::string params, step_time, role = "all";
  std::int64_t steps = 0, replicas = 0;
  double seconds = 10;
};

/// The command line of one binary. Add the verbs, then call `run` once.
class CommandLine {
 public:
  /// `torch` is the value of --torch; processes that this one starts get it too.
  CommandLine(const std::string& description, TrainerBuild trainer, std::string torch = {});

  void add_coordinator();
  /// `train` runs a worker without --reduce-only; null in a binary without a trainer.
  void add_worker(std::function<int(WorkerRequest)> train);
  void add_config();
  void add_replay();
  void add_certs();
  void add_data();
  void add_bench();
  void add_trace();
  void add_help();
  void add_completion();

  /// For verbs that only one binary has.
  [[nodiscard]] CLI::App& app() { return app_; }
  [[nodiscard]] Flags& flags() { return flags_; }
  void add_set(CLI::App& verb);
  void add_security(CLI::App& verb);
  /// Sets `Flags::json`; the verb makes a JsonOutput from it.
  CLI::Option* add_json(CLI::App& verb);
  /// Sets what the verb does after the command line has been parsed.
  void on(CLI::App& verb, std::function<int()> act);
  /// The config keys that the flags override, as KEY=VALUE.
  [[nodiscard]] std::vector<std::string> assignments() const;
  /// Loads the experiment that the flags name.
  [[nodiscard]] Experiment load(const std::optional<WorkerPlace>& worker = std::nullopt,
                                Purpose purpose = Purpose::training) const;
  /// The build of this binary, for messages about different builds.
  [[nodiscard]] std::string build() const { return build_name(trainer_); }
  /// The first words of a command that runs this binary again.
  [[nodiscard]] std::vector<std::string> program() const;
  /// `ask` is called with the verb's name before the verb acts. If it returns an exit status, the verb does
  /// not act.
  void before(std::function<std::optional<int>(const std::string& verb)> ask) { ask_ = std::move(ask); }

  /// Returns the exit status; prints errors on standard error.
  [[nodiscard]] int run(int argc, char** argv);

 private:
  /// The arguments of `isthmus worker`, for a program that trains instead of it (worker.command).
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
