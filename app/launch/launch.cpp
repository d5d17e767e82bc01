#include "launch/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text_file.h"
#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/net/link/run_secret.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "isthmus/trainer/checkpoint_folder.h"
#include "launch/agent/agent_socket.h"
#include "launch/detach.h"
#include "launch/processes/local_run.h"
#include "launch/processes/restarts.h"
#include "launch/sites/launch_places.h"
#include "launch/sites/site_links.h"
#include "plan/choose.h"
#include "run/experiment/experiment.h"
#include "run/experiment/identity.h"
#include "run/output/exit_codes.h"
#include "run/output/json_output.h"
#include "run/process/joined.h"
#include "run/process/machine.h"
#include "run/process/run_folder.h"
#include "run/process/signals.h"

namespace isthmus::app {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Kind = LauncherConfig::Kind;
namespace tls = outer_sync::tls;

namespace {

class Launch final : public LocalRun {
 public:
  explicit Launch(const LaunchRequest& request)
      : request_(request),
        output_(request.json),
        experiment_(load()),
        places_(find_places(experiment_, config())),
        links_(experiment_, [this](const Site& site, const SiteFacts& facts) {
          return files_of(lock_ ? LaunchConfig{config_file(), {}} : config(), experiment_, site, facts,
                          secret_);
        }) {
    check_reach(config(), experiment_);
    if (request_.resume) links_.take_up();
    if (experiment_.trainer.threads > 0 || places_.processes == 0) return;
    // Other machines have other cores, so with remote sites the number is not put into the config.
    (anybody_elsewhere() ? threads_here_ : experiment_.trainer.threads) = threads_each(places_.processes);
  }

  /// If starting fails, the processes started so far end. Otherwise those of agents continue.
  ~Launch() override {
    if (!ends_all_) let_go_on();
    leave_sites();
  }

  int run() {
    if (request_.started_fd < 0) return run_here();
    fcntl(request_.started_fd, F_SETFD, FD_CLOEXEC);  // children do not inherit it
    int status = 1;
    try {
      status = run_here();
    } catch (const Error& error) {
      if (logged_) say_ended(experiment_.folder(), error.exit_status());
      throw;
    }
    say_ended(experiment_.folder(), status);
    return status;
  }

 private:
  int run_here() {
    // Child processes inherit this: a terminal or an SSH connection may be lost.
    std::signal(SIGHUP, SIG_IGN);
    std::atomic<int> interrupts = 0;
    const SignalThread signals([&](int, int count) { interrupts = count; });
    // Connect first: a launch that cannot start must not move folders.
    if (!links_.connect(interrupts)) return 130;
    prepare_folder(interrupts);
    if (interrupts > 0) return 130;
    if (request_.started_fd >= 0) detach();
    ends_all_ = !taken_up_;
    start(interrupts);
    ends_all_ = false;
    say_started(request_.started_fd);
    const int status = watch(interrupts, std::chrono::duration<double>(experiment_.run.stop_grace.seconds));
    ends_all_ = true;
    if (request_.resume && !has_begun()) restore_config();
    keep_summary();
    print_json(status);
    if (status == stopped_exit && has_begun())
      say_error(fmt::format("to continue: isthmus launch --resume {}", experiment_.folder().string()));
    leave_sites();
    return status;
  }

  void let_go_on() {
    links_.let_go_on();
    if (here_) here_->let_go_on();
  }

  /// Call before the members that the links' threads use are destroyed.
  void leave_sites() {
    for (auto& process : processes_) process.reset();
    processes_.clear();
    if (here_) here_->close_soon();
    links_.leave();
    here_.reset();
  }

  void detach() {
    if (!places_.reader.empty())
      throw Error(
          ErrorKind::config,
          "data.path is - for " + places_.reader +
              ", but a detached launch has no standard input; expected a stream like tcp://HOST:PORT");
    begin_log(experiment_.folder(), request_.started_fd);
    logged_ = true;
  }

  Experiment load() {
    const auto file = request_.resume ? request_.config / "config.yaml" : request_.config;
    auto loaded = load_and_choose(file, request_.assignments);
    if (!loaded.chosen.empty()) say_line(loaded.chosen);
    auto experiment = std::move(loaded.experiment);
    if (request_.resume) {  // the folder may have moved since
      const auto folder = std::filesystem::absolute(request_.config).lexically_normal();
      const auto clean = folder.has_filename() ? folder : folder.parent_path();
      experiment.run.out = clean.parent_path().string();
      if (clean.filename() != experiment.run.name) experiment.run.name = clean.filename().string();
    }
    return experiment;
  }

  /// The experiment of a worker on this machine, with its site's settings.
  [[nodiscard]] Experiment of_worker(const std::string& name) const {
    if (experiment_.sites.empty()) return experiment_;
    return load_experiment(file(), request_.assignments, WorkerPlace{name, {}});
  }
  [[nodiscard]] std::filesystem::path file() const {
    return request_.resume ? request_.config / "config.yaml" : request_.config;
  }
  [[nodiscard]] LaunchConfig config() const { return {file(), request_.assignments}; }

  // ---- the folder ----

  void prepare_folder(const std::atomic<int>& interrupts) {
    if (!request_.resume) {
      if (agent_lives(agent_here()))
        throw Error(ErrorKind::config,
                    fmt::format("the run in {0} is in progress: its launch was lost, but its processes "
                                "continue; take the run over with isthmus launch --resume {0}",
                                experiment_.folder().string()));
      make_room(experiment_.folder());
    }
    lock_.emplace(experiment_.folder(), patience_with_the_killed);
    if (request_.started_fd >= 0 || agent_lives(agent_here())) connect_here(interrupts);
    find_what_runs();
    if (request_.resume && !taken_up_) check_checkpoints();
    if (!secret_.empty() && !taken_up_)
      replace_file(experiment_.folder() / secret_file, secret_, File::Mode::secret);
    config_before_ = text_if_there(config_file());
    metrics_before_ = metrics_size();
    if (!taken_up_) replace_file(config_file(), to_yaml(experiment_));
  }

  // ---- an agent on this machine: processes of a detached launch outlive the launch ----

  [[nodiscard]] AgentPlace agent_here() const { return {experiment_.folder(), "launch.here"}; }

  void connect_here(const std::atomic<int>& interrupts) {
    auto command = request_.program;
    command.insert(command.end(),
                   {"tether", "--folder", std::filesystem::absolute(experiment_.run.out).string(), "--run",
                    experiment_.run.name, "--site", agent_here().site, "--silence",
                    fmt::format("{}", experiment_.launch.silence.seconds), "--grace",
                    fmt::format("{}", experiment_.run.stop_grace.seconds)});
    here_ = std::make_shared<SiteLink>(
        SiteLink::Options{.site = "this machine",
                          .place = "its agent",
                          .command = std::move(command),
                          .take_up = request_.resume,
                          .same_disk = true,
                          .files = [](const SiteFacts&) { return std::vector<SiteFile>(); },
                          .show =
                              [](const std::string& who, const std::string& line) {
                                if (who == tls::coordinator_name || who == "this machine")
                                  SiteLinks::show_on_standard_output(who, line);
                              }});
    while (here_->state() == SiteLink::State::connecting && interrupts == 0)
      std::this_thread::sleep_for(20ms);
    if (here_->state() == SiteLink::State::failed) throw Error(ErrorKind::data, here_->problem());
  }

  /// The link to the agent that starts and ends a process; null if the process is a child of this one.
  [[nodiscard]] std::shared_ptr<SiteLink> link_of(const Site* site) {
    return site != nullptr && site->is_elsewhere() ? links_.to(*site) : here_;
  }
  [[nodiscard]] std::shared_ptr<SiteLink> link_of(const std::string& name) {
    if (name == tls::coordinator_name) return link_of(coordinator_site(experiment_));
    const auto* site = place_of(name).site;
    if (site != nullptr && !is_started_here(name)) return nullptr;  // started by a scheduler
    return name == places_.reader ? nullptr : link_of(site);
  }

  /// A process that an agent already had; nullopt if none has this name.
  [[nodiscard]] std::optional<FoundProcess> found(const std::string& name) {
    const auto link = link_of(name);
    if (!link) return std::nullopt;
    const auto all = link->found();
    const auto one = all.find(name);
    return one == all.end() ? std::nullopt : std::optional(one->second);
  }

  /// The run is taken over if a worker still runs or the coordinator has ended well meanwhile. Otherwise it
  /// is resumed, and the processes that are left end first.
  void find_what_runs() {
    if (!request_.resume) return;
    for (std::int64_t k = 0; k < experiment_.reducers; ++k) reducers_.insert(fmt::format("reducer-{}", k));
    for (const auto& name : worker_names(experiment_)) {
      const auto worker = found(name);
      taken_up_ = taken_up_ || (worker && !worker->status);
    }
    const auto coordinator = found(tls::coordinator_name);
    taken_up_ = taken_up_ || (coordinator && coordinator->status == 0);
    if (taken_up_) {
      if (!request_.assignments.empty())
        throw Error(ErrorKind::config,
                    "the run is in progress, so --set cannot be used; use isthmus launch --resume without "
                    "--set, or isthmus ctl set");
      port_ = static_cast<std::uint16_t>(
          std::strtoul(text_if_there(port_file()).c_str(), nullptr, 10));  // 0 if unknown
      say_error(fmt::format("{} is in progress; taking it over", experiment_.run.name));
      return;
    }
    if (coordinator && !coordinator->status) end_found(tls::coordinator_name);
    for (const auto& name : reducers_) {
      const auto reducer = found(name);
      if (reducer && !reducer->status) end_found(name);
    }
  }

  void end_found(const std::string& name) {
    const auto process = link_of(name)->adopt(name, {});
    process->signal(SIGKILL);
    while (process->running()) std::this_thread::sleep_for(20ms);
  }

  std::unique_ptr<RunProcess> take_up(const std::string& name, const std::filesystem::path& log) {
    return taken_up_ && found(name) ? link_of(name)->adopt(name, log) : nullptr;
  }

  /// The run's secret; empty with certificates or without any authentication. Sites receive it before the run
  /// folder exists.
  [[nodiscard]] std::string find_secret() const {
    const auto& network = experiment_.network;
    if (!network.certs.empty() || network.insecure) return {};
    if (!network.secret.empty()) {
      outer_sync::make_run_secret(network.secret);
      return read_text(network.secret, max_secret);
    }
    const auto kept = request_.resume ? text_if_there(experiment_.folder() / secret_file, max_secret) : "";
    return kept.empty() ? outer_sync::new_run_secret() : kept;
  }

  std::filesystem::path config_file() const { return experiment_.folder() / "config.yaml"; }

  /// Undoes the settings of a failed resume, so that they do not affect the next one.
  void restore_config() const { replace_file(config_file(), config_before_); }

  /// Bytes of metrics of all local replicas; grows once one of them trains.
  std::uintmax_t metrics_size() const {
    std::uintmax_t sum = 0;
    for (const auto& name : worker_names(experiment_)) {
      std::error_code no_file;
      const auto size = std::filesystem::file_size(experiment_.folder() / name / "metrics.jsonl", no_file);
      sum += no_file ? 0 : size;
    }
    return sum;
  }

  bool has_begun() const { return taken_up_ || metrics_size() > metrics_before_ || links_.begun(); }

  /// Reports a missing common checkpoint before the replicas load their data. With remote sites, the
  /// coordinator reports it.
  void check_checkpoints() const {
    if (!experiment_.worker.words().empty())
      return;  // it is unknown where that program keeps its checkpoints
    std::vector<std::vector<std::uint64_t>> steps;
    for (const auto& [name, place] : places_.of) {
      if (place.site != nullptr && place.site->is_elsewhere()) return;
      auto theirs = trainer::checkpoint_steps(experiment_.folder() / name / "checkpoints", 0);
      // A replica without checkpoints copies the state from the others; data-parallel runs do not support
      // that.
      if (!theirs.empty() || experiment_.outer.data_parallel()) steps.push_back(std::move(theirs));
    }
    if (trainer::latest_common_step(steps)) return;
    throw Error(ErrorKind::data,
                fmt::format("{} has no checkpoint that is common to all {} replicas; start without --resume",
                            experiment_.folder().string(), experiment_.replicas));
  }

  /// Stores the summary of a coordinator on another machine.
  void keep_summary() {
    const auto* site = coordinator_site(experiment_);
    if (site == nullptr || processes_.empty() || !links_.loss(*site).empty()) return;
    const auto text = links_.to(*site)->summary();
    try {
      if (!text.empty()) replace_file(experiment_.folder() / "summary.json", text);
    } catch (const Error& error) {  // must not change the exit status
      say_error(error.what());
    }
  }

  // ---- starting ----

  void start(const std::atomic<int>& interrupts) {
    restarts_.emplace(experiment_.run.restarts);
    interrupts_ = &interrupts;
    const auto& coordinator = experiment_.network.coordinator;
    if (taken_up_) {
      take_up_coordinator(interrupts);
    } else if (!start_any_coordinator(request_.resume, coordinator, interrupts)) {
      return;
    }
    for (const auto& name : worker_names(experiment_)) {
      if (is_started_here(name)) processes_.push_back(take_up_or_start(name));
    }
    for (const auto& site : experiment_.sites) {
      const auto kind = site.launch.kind();
      if (kind == Kind::slurm || kind == Kind::kubernetes)
        say_error(
            fmt::format("site {} is started by {}: the run waits for {}; launch --render {} writes the files "
                        "that start them",
                        site.name, to_string(kind), joined(site.workers(), ", "), to_string(kind)));
    }
    for (std::int64_t k = 0; k < experiment_.reducers; ++k) {
      const auto name = fmt::format("reducer-{}", k);
      reducers_.insert(name);
      processes_.push_back(take_up_or_start(name));
    }
  }

  void take_up_coordinator(const std::atomic<int>& interrupts) {
    if (auto coordinator = take_up(tls::coordinator_name, {})) {
      processes_.push_back(std::move(coordinator));
      port_ = link_of(tls::coordinator_name)->port().value_or(port_);
      set_address(listen_address(experiment_.network.coordinator), port_);
      keep_port();
    } else {
      static_cast<void>(start_any_coordinator(false, coordinator_address_again(), interrupts));
    }
  }

  std::unique_ptr<RunProcess> take_up_or_start(const std::string& name) {
    auto worker = take_up(name, log_of(name));
    return worker ? std::move(worker) : start_worker(name);
  }

  [[nodiscard]] std::filesystem::path log_of(const std::string& name) const {
    return experiment_.folder() / name / "worker.log";
  }

  /// Reducers and the coordinator belong to no site.
  [[nodiscard]] Place place_of(const std::string& name) const {
    const auto found = places_.of.find(name);
    return found == places_.of.end() ? Place{} : found->second;
  }
  [[nodiscard]] bool is_started_here(const std::string& worker) const {
    const auto* site = places_.of.at(worker).site;
    return site == nullptr || site->launch.kind() == Kind::local || site->launch.kind() == Kind::ssh;
  }

  [[nodiscard]] std::string listen_address(const std::string& address) const {
    return anybody_elsewhere() ? coordinator_listen(address) : address;
  }

  /// Returns false if the coordinator does not listen; `watch` then reports its end.
  bool start_any_coordinator(bool resume, const std::string& address, const std::atomic<int>& interrupts) {
    const auto* site = coordinator_site(experiment_);
    const auto listen = listen_address(address);
    const auto link = link_of(site);
    if (!link) {
      if (!start_coordinator(coordinator_command(resume), listen)) return false;
      port_ = outer_sync::parse_address(LocalRun::address(), "the coordinator").port;
      keep_port();
      return true;
    }
    const auto config = site != nullptr ? config_there(links_.facts(*site), experiment_.run.name, *site)
                                        : std::filesystem::absolute(config_file()).string();
    SiteStart start{.name = tls::coordinator_name,
                    .folder = experiment_.run.name,
                    .arguments = {"coordinator", "--config", config, "--listen", listen},
                    .coordinates = true};
    if (resume) start.arguments.emplace_back("--resume");
    auto process = link->start(start);
    const auto port = link->await_port(*process, interrupts);
    port_ = port.value_or(port_);
    set_address(listen, port_);
    if (processes_.empty()) processes_.emplace_back();
    processes_.front() = std::move(process);
    keep_port();
    return port.has_value();
  }

  /// Stores the port for a launch that takes the run over. A full disk is reported and ignored.
  void keep_port() const {
    try {
      replace_file(port_file(), fmt::format("{}\n", port_));
    } catch (const Error& error) {
      say_error(fmt::format("{}; launch --resume may not find this coordinator", error.what()));
    }
  }
  [[nodiscard]] std::filesystem::path port_file() const { return experiment_.folder() / "coordinator.port"; }

  [[nodiscard]] bool anybody_elsewhere() const {
    return std::ranges::any_of(experiment_.sites, [](const Site& site) { return site.is_elsewhere(); });
  }

  std::vector<std::string> coordinator_command(bool resume) const {
    auto command = request_.program;
    command.insert(command.end(), {"coordinator", "--config", config_file().string()});
    if (resume) command.emplace_back("--resume");
    return command;
  }

  /// `again`: the worker was in the run before.
  std::unique_ptr<RunProcess> start_worker(const std::string& name, bool again = false) {
    std::filesystem::create_directories(experiment_.folder() / name);
    const auto log = log_of(name);
    const auto place = place_of(name);
    if (place.site != nullptr && place.site->is_elsewhere()) return start_at_site(place, log, again);
    auto command = worker_command(name);
    if (offers_checkpoints(name, again)) command.emplace_back("--resume");
    if (const auto link = link_of(name)) {
      const auto program = static_cast<std::ptrdiff_t>(request_.program.size());  // the agent adds its own
      return link->start({.name = name,
                          .folder = experiment_.run.name + "/" + name,
                          .arguments = {command.begin() + program, command.end()},
                          .environment = gpu_environment(place.gpus),
                          .again = words_again(name),
                          .log = log});
    }
    return std::make_unique<Process>(Process::Options{.name = name,
                                                      .command = std::move(command),
                                                      .log = log,
                                                      .keep_fd = -1,
                                                      .standard_input = name == places_.reader,
                                                      .environment = gpu_environment(place.gpus)});
  }

  std::unique_ptr<RunProcess> start_at_site(const Place& place, const std::filesystem::path& log,
                                            bool again) {
    const auto& site = *place.site;
    const auto link = links_.to(site);
    const auto facts = links_.facts(site);
    auto start = start_there({"worker", "--quiet", "--config"}, {config_file(), {}}, experiment_.run.name,
                             site, place.index, facts);
    start.arguments.insert(start.arguments.end(), {"--coordinator", address_for(&site)});
    start.log = log;
    if (offers_checkpoints(start.name, again)) start.arguments.emplace_back("--resume");
    start.again = words_again(start.name);
    return link->start(start);
  }

  /// A worker that joins a run in progress copies the state from the others. If no member has the state any
  /// more, all return to their newest common checkpoint, so a restarted worker keeps its folder and offers
  /// its checkpoints. A worker.command decides itself what --resume means.
  [[nodiscard]] bool offers_checkpoints(const std::string& worker, bool again) const {
    const bool own_program = !experiment_.worker.words().empty();
    const bool resumes = request_.resume && !taken_up_;
    if (reducers_.contains(worker) || own_program) return resumes;
    const bool has_gone_on = metrics_before_ > 0 || links_.begun();
    return resumes || again || (request_.resume && has_gone_on);
  }
  /// Arguments that an agent adds when it restarts the worker.
  [[nodiscard]] std::vector<std::string> words_again(const std::string& worker) const {
    return offers_checkpoints(worker, true) ? std::vector<std::string>{"--resume"}
                                            : std::vector<std::string>();
  }

  std::string address_for(const Site* site) const {
    return anybody_elsewhere() ? address_at(experiment_, site, port_) : LocalRun::address();
  }

  std::vector<std::string> worker_command(const std::string& name) const {
    const auto place = place_of(name);
    auto command = request_.program;
    command.insert(command.end(),
                   {"worker", "--quiet", "--config", std::filesystem::absolute(config_file()).string(),
                    "--coordinator", address_for(place.site), "--name", name});
    if (threads_here_ > 0)
      command.insert(command.end(), {"--set", fmt::format("trainer.threads={}", threads_here_)});
    if (place.index > 0) add_ports(command, of_worker(name).network, place.index);
    if (reducers_.contains(name)) command.emplace_back("--reduce-only");
    return command;
  }

  // ---- while it runs ----

  /// A run that has begun continues without a lost worker and, for a while, without its coordinator.
  void keep_going() override {
    if (!elastic()) return;
    if (coordinator_returns()) return restart_coordinator();
    waits_for_coordinator_ = false;
    if (!processes_.front()->running()) return;  // the run is over
    for (std::size_t i = 1; i < processes_.size(); ++i) restart_if_ended(processes_[i]);
  }

  void restart_coordinator() {
    auto& coordinator = *processes_.front();
    const auto answer = restarts_->ask(tls::coordinator_name, Restarts::Cause::lost, Clock::now());
    if (answer == Restarts::Answer::later) {
      if (!std::exchange(waits_for_coordinator_, true))
        say_error(
            fmt::format("the coordinator {}; the workers continue without it, and it will be restarted soon",
                        fate(coordinator)));
      return;
    }
    say_error(fmt::format("the coordinator {}; restarting it", fate(coordinator)));
    waits_for_coordinator_ = false;
    // Without --resume: it continues the current run instead of resuming a checkpoint.
    try {
      static_cast<void>(start_any_coordinator(false, coordinator_address_again(), *interrupts_));
    } catch (const std::exception& error) {  // keep the ended process and try again later
      say_error(fmt::format("the coordinator could not be started: {}", error.what()));
    }
  }

  void restart_if_ended(std::unique_ptr<RunProcess>& worker) {
    const int status = worker->poll().value_or(0);
    if (status == 0 || told(*worker)) return;
    if (const auto cause = Restarts::cause_of(status)) {
      const auto answer = restarts_->ask(worker->name(), *cause, Clock::now());
      if (answer == Restarts::Answer::later) return;
      if (answer == Restarts::Answer::now) {
        say_error(fmt::format("{} {}; restarting it", worker->name(), fate(*worker)));
        try {
          worker = start_worker(worker->name(), true);
        } catch (const std::exception& error) {
          say_error(fmt::format("{} could not be started: {}", worker->name(), error.what()));
        }
        return;
      }
    }
    describe(*worker, status);
    say_error(fmt::format("the others continue; to bring it back: {}", way_back(worker->name())));
  }

  /// True if the run is not over, which its state file shows.
  bool coordinator_returns() const override {
    const auto status = elastic() ? processes_.front()->poll() : std::nullopt;
    if (!status || !Restarts::coordinator_returns(*status)) return false;
    const auto* site = coordinator_site(experiment_);
    return site != nullptr ? links_.run_goes_on(*site)
                           : may_be_there(experiment_.folder() / "coordinator.state");
  }

  std::string coordinator_address_again() const {
    if (coordinator_site(experiment_) == nullptr && !anybody_elsewhere() && !LocalRun::address().empty())
      return LocalRun::address();
    return coordinator_address(experiment_.network.coordinator, port_);
  }

  /// How a process ended; if its site's connection was lost, the reason for that.
  std::string fate(RunProcess& process) const {
    const auto* site = process.name() == tls::coordinator_name ? coordinator_site(experiment_)
                                                               : place_of(process.name()).site;
    const auto loss = site == nullptr ? std::string() : links_.loss(*site);
    if (!loss.empty()) return "is lost: " + loss;
    const int status = process.poll().value_or(0);
    return status > 128 ? fmt::format("was killed by signal {}", status - 128)
                        : fmt::format("ended with exit status {}", status);
  }

  std::string way_back(const std::string& name) const {
    const auto place = place_of(name);
    if (place.site != nullptr && place.site->is_elsewhere())
      return fmt::format("start it by hand on {}, or raise run.restarts next time", place.site->launch.ssh);
    std::string command;
    for (const auto& word : worker_command(name)) command += word + " ";
    return command;
  }

  /// Whether the run survives the loss of a member: it has begun, and its method lets members join and leave.
  bool elastic() const override { return !experiment_.outer.data_parallel() && has_begun(); }

  bool trains(const RunProcess& process) const override { return !reducers_.contains(process.name()); }
  bool more_will_train() const override {
    return std::ranges::any_of(places_.of, [&](const auto& place) { return !is_started_here(place.first); });
  }
  /// True even if all workers have died: they resume from their checkpoints.
  [[nodiscard]] bool comes_back(RunProcess& process) const override {
    const auto status = process.poll();
    return elastic() && status && !told(process) && Restarts::cause_of(*status).has_value();
  }

  void print_json(int status) {
    if (!output_.wanted()) return;
    nlohmann::ordered_json json;
    json["run"] = experiment_.run.name;
    json["folder"] = std::filesystem::absolute(experiment_.folder()).string();
    json["exit_status"] = status;
    for (std::size_t i = 0; i < processes_.size(); ++i) {
      auto& process = *processes_[i];
      const auto* site = place_of(process.name()).site;
      auto& entry = json["processes"][process.name()];
      if (site != nullptr) entry["site"] = site->name;
      entry["exit_status"] = process.poll() ? nlohmann::json(*process.poll()) : nlohmann::json();
      entry["restarts"] = restarts_->of(process.name());
      if (!process.log().empty()) entry["log"] = std::filesystem::absolute(process.log()).string();
    }
    auto summary =
        nlohmann::ordered_json::parse(text_if_there(experiment_.folder() / "summary.json"), nullptr, false);
    json["summary"] = summary.is_object() ? std::move(summary) : nlohmann::ordered_json();
    output_.print(json);
  }

  const LaunchRequest& request_;
  JsonOutput output_;  ///< first, because it redirects standard output
  Experiment experiment_;
  Places places_;
  std::set<std::string> reducers_;  ///< names
  std::optional<Restarts> restarts_;
  bool waits_for_coordinator_ = false;  ///< already reported
  std::int64_t threads_here_ = 0;       ///< for each rank of this machine's workers; 0: as configured
  std::uint16_t port_ = 0;              ///< the coordinator's
  static constexpr std::size_t max_secret = 4096;
  std::string secret_ = find_secret();
  std::optional<FolderLock> lock_;
  std::string config_before_;
  std::uintmax_t metrics_before_ = 0;
  bool logged_ = false;
  bool taken_up_ = false;  ///< the run was in progress
  bool ends_all_ = false;  ///< the agents' processes end with this launch
  const std::atomic<int>* interrupts_ = nullptr;
  SiteLinks links_;
  std::shared_ptr<SiteLink> here_;  ///< link to an agent on this machine; null: processes here are children
};

}  // namespace

int run_launch(const LaunchRequest& request) { return Launch(request).run(); }

}  // namespace isthmus::app
