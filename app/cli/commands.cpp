#include "cli/commands.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <span>
#include <utility>

#include "bench/bench.h"
#include "bench/loader.h"
#include "cli/completion.h"
#include "cli/data_command.h"
#include "cli/help_command.h"
#include "cli/replay.h"
#include "cli/trace_summary.h"
#include "coordinator/coordinator.h"
#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "isthmus/outer_sync/tls/join_token.h"
#include "launch/join.h"
#include "run/experiment/identity.h"
#include "run/process/process.h"
#include "worker/reducer.h"

namespace isthmus::app {

CommandLine::CommandLine(const std::string& description, TrainerBuild trainer, std::string torch)
    : app_(description), trainer_(std::move(trainer)), torch_(std::move(torch)) {
  app_.set_version_flag("--version", version_text(trainer_));
  app_.require_subcommand(1);
  app_.footer(exit_status_line());
}

std::vector<std::string> CommandLine::program() const {
  std::vector<std::string> words = {std::filesystem::read_symlink("/proc/self/exe").string()};
  if (!torch_.empty()) words.insert(words.end(), {"--torch", torch_});
  return words;
}

void CommandLine::on(CLI::App& verb, std::function<int()> act) {
  // A verb with subcommands that also works alone acts only if no subcommand was given.
  verb.callback([this, &verb, act = std::move(act)] {
    if (verb.get_subcommands().empty()) act_ = act;
  });
}

void CommandLine::add_set(CLI::App& verb) {
  verb.add_option("--set", flags_.set, "override a config key with KEY=VALUE (repeatable)")
      ->allow_extra_args(false);
}

CLI::Option* CommandLine::add_json(CLI::App& verb) {
  return verb.add_flag("--json", flags_.json,
                       "print one JSON document on standard output, and messages on standard error");
}

void CommandLine::add_security(CLI::App& verb) {
  verb.add_option("--certs", flags_.certs, "folder of certificates; overrides network.certs");
  verb.add_option("--secret", flags_.secret,
                  "file with the run's secret (RUN/run.secret on this machine); overrides network.secret");
  verb.add_flag("--insecure", flags_.insecure,
                "run without certificates: anyone on the network path can read and change all traffic, and "
                "join the run");
}

std::vector<std::string> CommandLine::assignments() const {
  auto assignments = flags_.set;
  if (flags_.replicas > 0) assignments.push_back("replicas=" + std::to_string(flags_.replicas));
  const auto override_with = [&](const char* key, const std::string& value) {
    if (!value.empty()) assignments.push_back(std::string(key) + "=\"" + value + "\"");
  };
  override_with("network.coordinator", flags_.coordinator);
  override_with("network.listen", flags_.listen);
  override_with("network.advertise", flags_.advertise);
  override_with("network.certs", flags_.certs);
  override_with("network.secret", flags_.secret);
  if (flags_.insecure) assignments.emplace_back("network.insecure=true");
  return assignments;
}

Experiment CommandLine::load(const std::optional<WorkerPlace>& worker, Purpose purpose) const {
  return load_experiment(flags_.config, assignments(), worker, purpose);
}

void CommandLine::add_coordinator() {
  auto* verb = app_.add_subcommand("coordinator", "form the run, show its progress, write its summary");
  verb->add_option("--config", flags_.config, "experiment in YAML")->required();
  verb->add_option("--listen", flags_.coordinator,
                   "ADDRESS:PORT to listen on; overrides network.coordinator");
  verb->add_flag("--resume", flags_.resume, "the workers resume from their checkpoints");
  verb->add_flag("--recover", flags_.recover,
                 "take over a live run from its members when the coordinator's own state is lost");
  verb->add_option("--give-up", flags_.given_up,
                   "with --recover: NAME[,NAME] of trainers that will not return; their rounds may be lost")
      ->delimiter(',');
  verb->add_option("--announce-fd", flags_.announce_fd, "descriptor that gets the port, for launchers")
      ->group("");
  add_security(*verb);
  add_set(*verb);
  add_json(*verb);
  verb->footer("Example: isthmus coordinator --config two_sites.yaml --listen 0.0.0.0:7000");
  on(*verb, [this] {
    return run_coordinator({.experiment = load(std::nullopt, Purpose::own_data),
                            .announce_fd = flags_.announce_fd,
                            .resume = flags_.resume,
                            .json = flags_.json,
                            .build = build(),
                            .recover = flags_.recover,
                            .given_up = {flags_.given_up.begin(), flags_.given_up.end()}});
  });
}

std::vector<std::string> CommandLine::worker_arguments() const {
  std::vector<std::string> words = {"--config", flags_.config, "--name", flags_.name};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  add("--coordinator", flags_.coordinator);
  add("--site", flags_.site);
  add("--listen", flags_.listen);
  add("--advertise", flags_.advertise);
  add("--certs", flags_.certs);
  if (!flags_.secret.empty()) add("--set", "network.secret=\"" + flags_.secret + "\"");
  for (const auto& assignment : flags_.set) add("--set", assignment);
  if (flags_.insecure) words.emplace_back("--insecure");
  if (flags_.resume) words.emplace_back("--resume");
  if (flags_.quiet) words.emplace_back("--quiet");
  return words;
}

void CommandLine::add_worker(std::function<int(WorkerRequest)> train) {
  auto* verb = app_.add_subcommand(
      "worker", train ? "train one replica, or only reduce" : "reduce chunks for the trainers");
  verb->add_option("--config", flags_.config, "experiment in YAML")->required();
  verb->add_option("--coordinator", flags_.coordinator, "HOST:PORT");
  verb->add_option("--name", flags_.name, "worker name, unique in the run")->required();
  verb->add_option("--site", flags_.site,
                   "site that provides the settings; by default the site of the worker's name");
  verb->add_option("--listen", flags_.listen, "ADDRESS:PORT for peers, or none; overrides network.listen");
  verb->add_option("--advertise", flags_.advertise, "HOST:PORT that peers dial; overrides network.advertise");
  verb->add_flag("--reduce-only", flags_.reduce_only, "reduce chunks only, without a model or data");
  verb->add_flag("--resume", flags_.resume, "resume from the newest checkpoint that all replicas have");
  verb->add_flag("--quiet", flags_.quiet, "print no progress line");
  add_security(*verb);
  add_set(*verb);
  verb->footer(
      "Example: isthmus worker --config two_sites.yaml --coordinator eu.example:7000 --name us-1 "
      "--listen 0.0.0.0:7001 --advertise us.example:7001");
  on(*verb, [this, train = std::move(train)] {
    // Sites have trainers; a reducer may be at none of them.
    const bool reduces_anywhere = flags_.reduce_only && flags_.site.empty();
    WorkerRequest request{
        .experiment = reduces_anywhere ? load() : load(WorkerPlace{flags_.name, flags_.site}),
        .name = flags_.name,
        .resume = flags_.resume,
        .quiet = flags_.quiet,
        .build = build(),
        .program = program()};
    if (flags_.reduce_only) return run_reducer(request);
    if (auto program = request.experiment.worker.words(); !program.empty()) {
      for (auto& word : worker_arguments()) program.push_back(std::move(word));
      become_program(std::move(program), "worker.command");
    }
    if (!train)
      throw Error(ErrorKind::config,
                  "this binary cannot train: pass --reduce-only, or start `isthmus worker`");
    return train(std::move(request));
  });
}

void CommandLine::add_config() {
  auto* verb =
      app_.add_subcommand("config", "print an experiment with every key, or the reference of all keys");
  verb->add_option("config", flags_.config,
                   "experiment in YAML; without it, print the reference in Markdown");
  verb->add_option("--name", flags_.name, "print the settings of this worker");
  verb->add_option("--site", flags_.site, "print the settings of this site");
  add_set(*verb);
  add_json(*verb);
  verb->footer("Example: isthmus config configs/quickstart.yaml --set replicas=4");
  on(*verb, [this] {
    if (flags_.config.empty()) return print_reference(flags_.json);
    auto experiment =
        flags_.name.empty() && flags_.site.empty() ? load() : load(WorkerPlace{flags_.name, flags_.site});
    return print_config(experiment, flags_.json);
  });
  add_config_parts(*verb);
}

void CommandLine::add_config_parts(CLI::App& verb) {
  auto& request = flags_.config_request;
  auto* explain = verb.add_subcommand(
      "explain", "explain a key: its meaning, allowed values, and the reason for its default");
  explain->add_option("key", request.key, "full name of the key, for example outer.sync_every")->required();
  add_json(*explain);
  explain->footer("Example: isthmus config explain outer.sync_every");
  on(*explain, [this, &request] {
    request.json = flags_.json;
    return run_config_explain(request);
  });
  auto* diff = verb.add_subcommand("diff", "list the keys with different effective values");
  diff->add_option("a", request.a, "folder of a run, or experiment in YAML")->required();
  diff->add_option("b", request.b, "folder of another run, or another experiment in YAML")->required();
  add_json(*diff);
  diff->footer("Example: isthmus config diff runs/quickstart configs/overlap.yaml");
  on(*diff, [this, &request] {
    request.json = flags_.json;
    return run_config_diff(request);
  });
}

void CommandLine::add_replay() {
  auto* verb =
      app_.add_subcommand("replay", "rebuild the global parameters from a round log and check its hashes");
  verb->add_option("log", flags_.log, "folder of the log")->required();
  verb->add_option("--until", flags_.until, "last round of each fragment to apply; all by default");
  verb->add_option("--out", flags_.out, "safetensors file to write");
  add_json(*verb);
  verb->footer("Example: isthmus replay runs/my/log/eu-1 --until 500 --out model.safetensors");
  on(*verb, [this] {
    return run_replay({.log = flags_.log, .until = flags_.until, .json = flags_.json, .out = flags_.out});
  });
}

void CommandLine::add_certs() {
  using Task = CertsRequest::Task;
  auto* verb = app_.add_subcommand("certs", "make, issue and revoke the certificates of a run");
  verb->require_subcommand(1);
  auto& request = flags_.authority;
  const auto add = [&](const char* name, const char* help, Task task, const char* example) {
    auto* part = verb->add_subcommand(name, help);
    part->add_option("run", request.run, "name of the run")->required();
    if (task != Task::init)
      part->add_option("name", request.name, "name of a replica, or coordinator")->required();
    part->add_option("--dir", request.folder, "parent folder of the runs' certificates")
        ->default_val("certs");
    on(*part, [this, &request, task] {
      request.task = task;
      request.json = flags_.json;
      return run_certs(request);
    });
    add_json(*part);
    part->footer(std::string("Example: isthmus certs ") + example);
    return part;
  };
  add("init", "create the certificate authority of a run", Task::init, "init my-run");
  auto* issue = add("issue", "issue a certificate for one process; run it again to replace it", Task::issue,
                    "issue my-run eu-1");
  issue->add_option("--days", request.days, "validity of the certificate in days")
      ->default_val(365)
      ->check(CLI::Range(1, 3650));
  issue->add_option("--role", request.role, role_help);
  add_invite(*this, *verb);
  add("revoke", "revoke every certificate and invitation of one process", Task::revoke, "revoke my-run eu-1");
}

void CommandLine::add_trace() {
  auto* verb = app_.add_subcommand("trace", "read the trace of a replica");
  verb->require_subcommand(1);
  auto* summary =
      verb->add_subcommand("summary", "show where a replica's time went: computing, or waiting and for what");
  summary->add_option("file", flags_.out, "trace.json of a replica")->required();
  summary->footer("Example: isthmus trace summary runs/quickstart/replica-0/trace.json");
  add_json(*summary);
  on(*summary, [this] { return run_trace_summary(flags_.out, flags_.json); });
}

void CommandLine::add_help() {
  auto* verb = app_.add_subcommand("help", "show help for a verb, or list all verbs");
  auto& request = flags_.help;
  verb->add_option("verb", request.verb, "verb to explain; all by default");
  verb->add_flag("--markdown", request.markdown, "all verbs and options in Markdown (docs/cli.md)");
  verb->add_flag("--metrics", request.metrics, "the metrics for Prometheus in Markdown (docs/metrics.md)");
  verb->add_flag("--check", request.check, "check that all examples are valid command lines")->group("");
  verb->footer("Example: isthmus help data show");
  on(*verb, [this, &request] { return run_help(app_, request); });
}

void CommandLine::add_completion() {
  auto* verb =
      app_.add_subcommand("completion", "print a script that completes verbs, options and keys in a shell");
  verb->add_option("shell", flags_.shell, "shell to generate completions for")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  verb->footer("Example: isthmus completion bash");
  on(*verb, [this] {
    std::fputs(completion_script(app_, flags_.shell).c_str(), stdout);
    return 0;
  });
}

void CommandLine::add_data() {
  auto* verb = app_.add_subcommand("data", "make and inspect chunk stores: token ids in compressed blocks");
  verb->require_subcommand(1);
  add_data_tokenize(*verb);
  auto& request = flags_.data;
  auto* tune =
      verb->add_subcommand("tune", "measure which block size and codec suit a corpus on this machine");
  tune->add_option("path", request.tune.path, "a store, a .bin file, a Megatron data set, or text")
      ->required();
  tune->add_option("--tokenizer", request.tune.tokenizer, "tokenizer for text: bytes, or a tokenizer file")
      ->capture_default_str();
  tune->add_option("--text-field", request.tune.text_field, "name of the text field in JSONL")
      ->capture_default_str();
  tune->add_option("--sample", request.sample_megabytes, "MB of ids to measure with")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  tune->footer("Example: isthmus data tune /data/text --tokenizer my.model");
  add_json(*tune);
  on(*tune, [this, &request] {
    request.json = flags_.json;
    return run_data_tune(request);
  });
  auto* show = verb->add_subcommand("show", "show what a store holds");
  show->add_option("folder", request.folder, "folder of the store")->required();
  show->add_flag("--verify", request.verify, "read all of it and check every checksum");
  show->footer("Example: isthmus data show /data/store --verify");
  add_json(*show);
  on(*show, [this, &request] {
    request.json = flags_.json;
    return run_data_show(request);
  });
  auto* ledger =
      verb->add_subcommand("ledger", "report which sequences a run trained on, and which twice or never");
  ledger->add_option("run", request.folder, "folder of the run")->required();
  ledger->footer("Example: isthmus data ledger runs/my-run");
  add_json(*ledger);
  on(*ledger, [this, &request] {
    request.json = flags_.json;
    return run_data_ledger(request);
  });
}

void CommandLine::add_data_tokenize(CLI::App& data) {
  auto* verb =
      data.add_subcommand("tokenize", "build a token store from text; rerun the same command to continue");
  auto& request = flags_.data;
  auto& options = request.tokenize;
  verb->add_option("sources", options.sources,
                   "text files, folders of them, .jsonl files, or - (standard input)")
      ->required();
  verb->add_option("--out", options.out, "folder of the store to create")->required();
  verb->add_option("--tokenizer", options.tokenizer, "tokenizer: bytes, or a tokenizer file")->required();
  verb->add_option("--codec", request.codec, "zstd, lz4 or none")
      ->capture_default_str()
      ->check(CLI::IsMember({"zstd", "lz4", "none"}));
  verb->add_option("--level", options.level, "compression level: zstd -7 to 19, lz4 1 or 3 to 12")
      ->capture_default_str();
  verb->add_option("--block", options.block_tokens, "ids in a block")
      ->capture_default_str()
      ->check(CLI::Range(data::min_block_tokens, data::max_block_tokens));
  verb->add_option("--threads", options.threads,
                   "threads that tokenise, and the same number that compress; 0: one per core")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  verb->add_option("--text-field", options.text_field, "name of the text field in JSONL")
      ->capture_default_str();
  verb->add_option("--on-bad", request.on_bad, "fail at a bad document, or skip and count it")
      ->capture_default_str()
      ->check(CLI::IsMember({"fail", "skip"}));
  auto* jsonl = verb->add_flag("--jsonl", request.jsonl, "standard input is JSONL");
  verb->add_flag("--text", request.text, "standard input is one document of text")->excludes(jsonl);
  verb->add_option("--commit-every", options.commit_every, "seconds")->group("");
  verb->footer("Example: isthmus data tokenize /data/text more.jsonl --out /data/store --tokenizer my.model");
  add_json(*verb);
  on(*verb, [this, &request] {
    request.json = flags_.json;
    return run_data_tokenize(request);
  });
}

void CommandLine::add_bench() {
  auto* verb = app_.add_subcommand("bench", "measure parts of a run, without a model");
  verb->require_subcommand(1);
  add_bench_outer(*verb);
  add_bench_loader(*verb);
}

void CommandLine::add_bench_loader(CLI::App& bench) {
  auto* verb = bench.add_subcommand("loader", "load a config's data: does it keep up with training?");
  verb->add_option("config", flags_.config, "experiment in YAML")->required();
  verb->add_option("--step-time", flags_.step_time,
                   "time of an inner step, for example 50ms; by default as fast as possible");
  verb->add_option("--seconds", flags_.seconds, "seconds for each measurement")
      ->check(CLI::Range(0.1, 86400.0));
  verb->add_option("--out", flags_.out, "write the figures to this file as JSON");
  add_json(*verb);
  add_set(*verb);
  verb->footer("Example: isthmus bench loader configs/quickstart.yaml --step-time 50ms");
  on(*verb, [this] {
    LoaderBenchRequest request{.experiment = load(),
                               .seconds = flags_.seconds,
                               .step_time = {},
                               .out = flags_.out,
                               .json = flags_.json};
    if (!flags_.step_time.empty()) request.step_time = step_duration(flags_.step_time);
    return run_loader_bench(request);
  });
}

void CommandLine::add_bench_outer(CLI::App& bench) {
  auto* verb = bench.add_subcommand(
      "outer", "run the outer loop with steps that only sleep: does it keep up over this link?");
  verb->add_option("--params", flags_.params, "parameters: 200M")->required();
  verb->add_option("--step-time", flags_.step_time, "time of an inner step, for example 500ms")->required();
  verb->add_option("--replicas", flags_.replicas, "number of replicas; overrides the key")
      ->check(CLI::Range(1, 1024));
  verb->add_option("--steps", flags_.steps, "number of steps; by default enough for two sync intervals")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000'000}));
  verb->add_option("--config", flags_.config, "experiment in YAML; its outer and network keys are used");
  verb->add_option("--out", flags_.out, "file for the coordinator's figures as JSON");
  add_json(*verb);
  verb->add_option("--role", flags_.role, "which part to start, when the parts run on several machines")
      ->capture_default_str()
      ->check(CLI::IsMember({"all", "coordinator", "replica"}));
  verb->add_option("--name", flags_.name, "name of the replica");
  verb->add_option("--coordinator", flags_.coordinator, "HOST:PORT of the coordinator, for a replica");
  verb->add_option("--listen", flags_.listen,
                   "ADDRESS:PORT to listen on, as the coordinator or for a replica's peers");
  verb->add_option("--advertise", flags_.advertise, "HOST:PORT that a replica's peers dial");
  verb->add_flag("--quiet", flags_.quiet, "a replica prints errors only");
  verb->add_option("--announce-fd", flags_.announce_fd)->group("");
  add_security(*verb);
  add_set(*verb);
  verb->footer(
      "Example: isthmus bench outer --params 200M --step-time 500ms --set network.emulate.rate=40Mbps");
  on(*verb, [this] { return bench_outer(); });
}

int CommandLine::bench_outer() {
  using Role = OuterBenchRequest::Role;
  const bool replica = flags_.role == "replica";
  if (replica == flags_.name.empty()) {
    throw Error(ErrorKind::config, replica ? "--role replica needs a --name" : "--name needs --role replica");
  }
  OuterBenchRequest request;
  request.parameters = parameter_count(flags_.params);
  request.step_time = step_duration(flags_.step_time);
  request.name = flags_.name;
  request.build = build();
  request.out = flags_.out;
  request.json = flags_.json;
  request.quiet = flags_.quiet;
  request.announce_fd = flags_.announce_fd;
  request.command = program();
  request.command.insert(request.command.end(), {"bench", "outer"});
  const auto pass_on = [&](const char* flag, const std::string& value) {
    if (!value.empty()) request.command.insert(request.command.end(), {flag, value});
  };
  pass_on("--params", flags_.params);
  pass_on("--step-time", flags_.step_time);
  pass_on("--replicas", flags_.replicas > 0 ? std::to_string(flags_.replicas) : "");
  pass_on("--steps", flags_.steps > 0 ? std::to_string(flags_.steps) : "");
  pass_on("--config", flags_.config);
  pass_on("--certs", flags_.certs);
  for (const auto& assignment : flags_.set) pass_on("--set", assignment);
  if (flags_.insecure) request.command.emplace_back("--insecure");
  if (flags_.role == "coordinator") {
    request.role = Role::coordinator;
    flags_.coordinator = std::exchange(flags_.listen, {});
  }
  if (replica) request.role = Role::replica;
  request.experiment =
      load(replica ? std::optional(WorkerPlace{flags_.name, {}}) : std::nullopt, Purpose::benchmark);
  make_measurable(request.experiment, flags_.steps);
  return run_outer_bench(std::move(request));
}

namespace {

/// Every account of the machine can read a process's command line for as long as the process runs.
void hide_tokens(std::span<char*> arguments) {
  for (char* argument : arguments) {
    const std::string_view text(argument);
    if (text.starts_with(outer_sync::tls::token_prefix)) std::fill_n(argument, text.size(), '*');
  }
}

}  // namespace

int CommandLine::run(int argc, char** argv) {
  open_standard_descriptors();
  try {
    app_.parse(argc, argv);
    if (ask_) {
      if (const auto status = ask_(app_.get_subcommands().front()->get_name())) return *status;
    }
    hide_tokens({argv, static_cast<std::size_t>(argc)});  // not earlier: `ask_` may read the arguments again
    return act_();
  } catch (const CLI::ParseError& error) {
    const int status = app_.exit(error);
    if (error.get_name() == "CallForHelp") std::fputs("\n", stdout);  // the help text has none at its end
    return status == 0 ? 0 : 2;
  } catch (const isthmus::Error& error) {
    say_error(std::string("isthmus: ") + error.what());
    return error.exit_status();
  } catch (const std::exception& error) {
    say_error(std::string("isthmus: ") + error.what());
    return 1;
  }
}

}  // namespace isthmus::app
