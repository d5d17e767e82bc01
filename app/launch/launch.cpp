#include "launch/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/say.h"
#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "launch/detach.h"
#include "launch/launch_folder.h"
#include "launch/launch_links.h"
#include "launch/launch_plan.h"
#include "launch/processes/local_run.h"
#include "launch/processes/restarts.h"
#include "run/output/exit_codes.h"
#include "run/output/json_output.h"
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
        plan_(request),
        links_(request, plan_, [this](const Site& site, const SiteFacts& facts) {
          return files_of(lock_ ? LaunchConfig{folder_.config(), {}} : plan_.config(), experiment_, site,
                          facts, secret_);
        }) {}

  /// If starting fails, the processes started so far end. Otherwise those of agents continue.
  ~Launch() override {
    if (!ends_all_) links_.leave_running();
    close_links();
  }

  int run() {
    if (request_.started_fd < 0) return run_here();
    fcntl(request_.started_fd, F_SETFD, FD_CLOEXEC);  // children do not inherit it
    int status = 1;
    try {
      status = run_here();
    } catch (const Error& error) {
      if (logged_) record_end(experiment_.folder(), error.exit_status());
      throw;
    }
    record_end(experiment_.folder(), status);
    return status;
  }

 private:
  int run_here() {
    // Child processes inherit this: a terminal or an SSH connection may be lost.
    std::signal(SIGHUP, SIG_IGN);
    std::atomic<int> interrupts = 0;
    const SignalThread signals([&](int, int count) { interrupts = count; });
    check_no_launch(experiment_.folder(), !request_.resume && links_.agent_lives_here());
    // Connect first: a launch that cannot start must not move folders.
    if (!links_.sites().connect(interrupts)) return 130;
    take_folder(interrupts);
    if (interrupts > 0) return 130;
    if (const auto finished = resumes() ? folder_.finished(plan_.places()) : std::nullopt) {
      say_error(*finished);
      print_json(0);
      ends_all_ = true;
      return 0;
    }
    write_folder();
    if (request_.started_fd >= 0) detach();
    ends_all_ = !taken_over_;
    start(interrupts);
    ends_all_ = false;
    report_started(request_.started_fd);
    const int status = watch(interrupts, std::chrono::duration<double>(experiment_.run.stop_grace.seconds));
    ends_all_ = true;
    if (request_.resume && !has_begun()) folder_.restore_config();
    keep_summary();
    print_json(status);
    if (status == stopped_exit && has_begun())
      say_error(fmt::format("to continue: isthmus launch --resume {}", experiment_.folder().string()));
    close_links();
    return status;
  }

  /// Call before the members that the links' threads use are destroyed.
  void close_links() {
    for (auto& process : processes_) process.reset();
    processes_.clear();
    links_.close();
  }

  void detach() {
    if (!plan_.places().reader.empty())
      config_error("data.path is - for " + plan_.places().reader +
                   ", but a detached launch has no standard input; expected a stream like tcp://HOST:PORT");
    begin_log(experiment_.folder(), request_.started_fd);
    logged_ = true;
  }

  // ---- the folder ----

  void take_folder(const std::atomic<int>& interrupts) {
    if (!request_.resume && !plan_.starts_all()) folder_.refuse_unfinished();
    if (!request_.resume) make_room(experiment_.folder());
    lock_.emplace(experiment_.folder(), patience_with_the_killed);
    if (request_.started_fd >= 0 || links_.agent_lives_here()) links_.connect_here(interrupts);
    find_running();
  }

  void write_folder() {
    if (resumes()) folder_.check_checkpoints(plan_.places());
    if (!taken_over_) folder_.write_secret(secret_);
    folder_.remember();
    if (taken_over_) return;
    auto experiment = experiment_;
    replace_file(folder_.config(), to_yaml(experiment));
  }

  /// The run is taken over if a worker still runs or the coordinator has ended well meanwhile. Otherwise it
  /// is resumed, and the processes that are left end first.
  void find_running() {
    if (!request_.resume) return;
    taken_over_ = std::ranges::any_of(worker_names(experiment_),
                                      [&](const auto& name) { return links_.found_running(name); });
    const auto coordinator = links_.found(tls::coordinator_name);
    taken_over_ = taken_over_ || (coordinator && coordinator->status == 0) ||
                  (folder_.run_is_unfinished() && !plan_.starts_all());  // others may be in the run
    if (taken_over_) {
      if (!request_.assignments.empty())
        config_error(
            "the run is in progress, so --set cannot be used; use isthmus launch --resume without "
            "--set, or isthmus ctl set");
      port_ = folder_.kept_port();
      say_error(fmt::format("{} is in progress; taking it over", experiment_.run.name));
      return;
    }
    if (coordinator && !coordinator->status) links_.kill_found(tls::coordinator_name);
    for (const auto& name : plan_.reducers()) {
      if (links_.found_running(name)) links_.kill_found(name);
    }
  }

  std::unique_ptr<RunProcess> take_over(const std::string& name, const std::filesystem::path& log) {
    return taken_over_ && links_.found(name) ? links_.of(name)->adopt(name, log) : nullptr;
  }

  bool resumes() const { return request_.resume && !taken_over_; }
  bool has_begun() const { return taken_over_ || folder_.has_new_metrics() || links_.sites().begun(); }

  /// Stores the summary of a coordinator on another machine.
  void keep_summary() {
    const auto* site = coordinator_site(experiment_);
    if (site == nullptr || processes_.empty() || !links_.sites().loss(*site).empty()) return;
    folder_.keep_summary(links_.sites().to(*site)->summary());
  }

  // ---- starting ----

  void start(const std::atomic<int>& interrupts) {
    restarts_.emplace(experiment_.run.restarts);
    interrupts_ = &interrupts;
    const auto& coordinator = experiment_.network.coordinator;
    if (taken_over_) {
      take_over_coordinator(interrupts);
    } else if (!start_any_coordinator(request_.resume, coordinator, interrupts)) {
      return;
    }
    for (const auto& name : worker_names(experiment_)) {
      if (plan_.is_started_here(name)) processes_.push_back(take_over_or_start(name));
    }
    for (const auto& site : experiment_.sites) {
      if (taken_over_) break;
      if (const auto line = line_about_awaited(site, resumes()); !line.empty()) say_error(line);
    }
    for (const auto& name : plan_.reducers()) processes_.push_back(take_over_or_start(name));
  }

  void take_over_coordinator(const std::atomic<int>& interrupts) {
    if (auto coordinator = take_over(tls::coordinator_name, {})) {
      processes_.push_back(std::move(coordinator));
      port_ = links_.of(tls::coordinator_name)->port().value_or(port_);
      set_address(plan_.listen_address(experiment_.network.coordinator), port_);
      folder_.keep_port(port_);
    } else {
      static_cast<void>(start_any_coordinator(false, known_coordinator_address(), interrupts));
    }
  }

  std::unique_ptr<RunProcess> take_over_or_start(const std::string& name) {
    auto worker = take_over(name, folder_.log_of(name));
    return worker ? std::move(worker) : start_worker(name);
  }

  /// Returns false if the coordinator does not listen; `watch` then reports its end.
  bool start_any_coordinator(bool resume, const std::string& address, const std::atomic<int>& interrupts) {
    const auto* site = coordinator_site(experiment_);
    const auto listen = plan_.listen_address(address);
    const auto link = links_.of(site);
    if (!link) {
      if (!start_coordinator(plan_.coordinator_command(folder_.config(), resume), listen)) return false;
      port_ = outer_sync::parse_address(LocalRun::address(), "the coordinator").port;
      folder_.keep_port(port_);
      return true;
    }
    const auto config = site != nullptr
                            ? config_there(links_.sites().facts(*site), experiment_.run.name, *site)
                            : std::filesystem::absolute(folder_.config()).string();
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
    folder_.keep_port(port_);
    return port.has_value();
  }

  /// `again`: the worker was in the run before.
  std::unique_ptr<RunProcess> start_worker(const std::string& name, bool again = false) {
    std::filesystem::create_directories(experiment_.folder() / name);
    const auto log = folder_.log_of(name);
    const auto place = plan_.place_of(name);
    if (place.site != nullptr && place.site->is_elsewhere()) return start_at_site(place, log, again);
    auto command = worker_command(name);
    if (offers_checkpoints(name, again)) command.emplace_back("--resume");
    if (const auto link = links_.of(name)) {
      const auto program = static_cast<std::ptrdiff_t>(request_.program.size());  // the agent adds its own
      return link->start({.name = name,
                          .folder = experiment_.run.name + "/" + name,
                          .arguments = {command.begin() + program, command.end()},
                          .environment = gpu_environment(place.gpus),
                          .again = restart_arguments(name),
                          .log = log});
    }
    return std::make_unique<Process>(Process::Options{.name = name,
                                                      .command = std::move(command),
                                                      .log = log,
                                                      .keep_fd = -1,
                                                      .standard_input = name == plan_.places().reader,
                                                      .environment = gpu_environment(place.gpus)});
  }

  std::unique_ptr<RunProcess> start_at_site(const Place& place, const std::filesystem::path& log,
                                            bool again) {
    const auto& site = *place.site;
    const auto link = links_.sites().to(site);
    const auto facts = links_.sites().facts(site);
    auto start = start_there({"worker", "--quiet", "--config"}, {folder_.config(), {}}, experiment_.run.name,
                             site, place.index, facts);
    start.arguments.insert(start.arguments.end(), {"--coordinator", address_for(&site)});
    start.log = log;
    if (offers_checkpoints(start.name, again)) start.arguments.emplace_back("--resume");
    start.again = restart_arguments(start.name);
    return link->start(start);
  }

  /// A worker that joins a run in progress copies the state from the others. If no member has the state any
  /// more, all return to their newest common checkpoint, so a restarted worker keeps its folder and offers
  /// its checkpoints. A worker.command decides itself what --resume means.
  [[nodiscard]] bool offers_checkpoints(const std::string& worker, bool again) const {
    if (plan_.is_reducer(worker) || plan_.place_of(worker).has_command) return resumes();
    const bool has_progress = folder_.had_metrics() || links_.sites().begun();
    return resumes() || again || (request_.resume && has_progress);
  }
  /// Arguments that an agent adds when it restarts the worker.
  [[nodiscard]] std::vector<std::string> restart_arguments(const std::string& worker) const {
    return offers_checkpoints(worker, true) ? std::vector<std::string>{"--resume"}
                                            : std::vector<std::string>();
  }

  [[nodiscard]] std::vector<std::string> worker_command(const std::string& name) const {
    return plan_.worker_command(name, folder_.config(), address_for(plan_.place_of(name).site));
  }
  std::string address_for(const Site* site) const {
    return plan_.has_remote_sites() ? address_at(experiment_, site, port_) : LocalRun::address();
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
                        how_it_ended(coordinator)));
      return;
    }
    say_error(fmt::format("the coordinator {}; restarting it", how_it_ended(coordinator)));
    waits_for_coordinator_ = false;
    // Without --resume: it continues the current run instead of resuming a checkpoint.
    try {
      static_cast<void>(start_any_coordinator(false, known_coordinator_address(), *interrupts_));
    } catch (const std::exception& error) {  // keep the ended process and try again later
      say_error(fmt::format("the coordinator could not be started: {}", error.what()));
    }
  }

  void restart_if_ended(std::unique_ptr<RunProcess>& worker) {
    const int status = worker->poll().value_or(0);
    if (status == 0 || is_reported(*worker)) return;
    if (const auto cause = Restarts::cause_of(status)) {
      const auto answer = restarts_->ask(worker->name(), *cause, Clock::now());
      if (answer == Restarts::Answer::later) return;
      if (answer == Restarts::Answer::now) {
        say_error(fmt::format("{} {}; restarting it", worker->name(), how_it_ended(*worker)));
        try {
          worker = start_worker(worker->name(), true);
        } catch (const std::exception& error) {
          say_error(fmt::format("{} could not be started: {}", worker->name(), error.what()));
        }
        return;
      }
    }
    report_end(*worker, status);
    say_error(fmt::format("the others continue; to bring it back: {}", restart_hint(worker->name())));
  }

  /// True if the run is not over, which its state file shows.
  bool coordinator_returns() const override {
    const auto status = elastic() ? processes_.front()->poll() : std::nullopt;
    if (!status || !Restarts::coordinator_returns(*status)) return false;
    const auto* site = coordinator_site(experiment_);
    return site != nullptr ? links_.sites().run_is_unfinished(*site) : folder_.run_is_unfinished();
  }

  std::string known_coordinator_address() const {
    if (coordinator_site(experiment_) == nullptr && !plan_.has_remote_sites() && !LocalRun::address().empty())
      return LocalRun::address();
    return coordinator_address(experiment_.network.coordinator, port_);
  }

  /// How a process ended; if its site's connection was lost, the reason for that.
  std::string how_it_ended(RunProcess& process) const {
    const auto* site = process.name() == tls::coordinator_name ? coordinator_site(experiment_)
                                                               : plan_.place_of(process.name()).site;
    const auto loss = site == nullptr ? std::string() : links_.sites().loss(*site);
    if (!loss.empty()) return "is lost: " + loss;
    const int status = process.poll().value_or(0);
    return status > 128 ? fmt::format("was killed by signal {}", status - 128)
                        : fmt::format("ended with exit status {}", status);
  }

  std::string restart_hint(const std::string& name) const {
    const auto place = plan_.place_of(name);
    if (place.site != nullptr && place.site->is_elsewhere())
      return fmt::format("start it by hand on {}, or raise run.restarts next time", place.site->launch.ssh);
    std::string command;
    for (const auto& word : worker_command(name)) command += word + " ";
    return command;
  }

  /// Whether the run survives the loss of a member: it has begun, and its method lets members join and leave.
  bool elastic() const override { return !experiment_.outer.data_parallel() && has_begun(); }

  bool trains(const RunProcess& process) const override { return !plan_.is_reducer(process.name()); }
  bool others_will_train() const override {
    return std::ranges::any_of(plan_.places().of,
                               [&](const auto& place) { return !plan_.is_started_here(place.first); });
  }
  /// True even if all workers have died: they resume from their checkpoints.
  [[nodiscard]] bool will_restart(RunProcess& process) const override {
    const auto status = process.poll();
    return elastic() && status && !is_reported(process) && Restarts::cause_of(*status).has_value();
  }

  void print_json(int status) {
    if (!output_.wanted()) return;
    nlohmann::ordered_json json;
    json["run"] = experiment_.run.name;
    json["folder"] = std::filesystem::absolute(experiment_.folder()).string();
    json["exit_status"] = status;
    for (std::size_t i = 0; i < processes_.size(); ++i) {
      auto& process = *processes_[i];
      const auto* site = plan_.place_of(process.name()).site;
      auto& entry = json["processes"][process.name()];
      if (site != nullptr) entry["site"] = site->name;
      entry["exit_status"] = process.poll() ? nlohmann::json(*process.poll()) : nlohmann::json();
      entry["restarts"] = restarts_->of(process.name());
      if (!process.log().empty()) entry["log"] = std::filesystem::absolute(process.log()).string();
    }
    auto summary = nlohmann::ordered_json::parse(folder_.summary(), nullptr, false);
    json["summary"] = summary.is_object() ? std::move(summary) : nlohmann::ordered_json();
    output_.print(json);
  }

  const LaunchRequest& request_;
  JsonOutput output_;  ///< first, because it redirects standard output
  LaunchPlan plan_;
  const Experiment& experiment_ = plan_.experiment();
  LaunchFolder folder_{experiment_};
  std::optional<Restarts> restarts_;
  bool waits_for_coordinator_ = false;  ///< already reported
  std::uint16_t port_ = 0;              ///< the coordinator's
  std::string secret_ = folder_.find_secret(request_.resume);
  std::optional<FolderLock> lock_;
  bool logged_ = false;
  bool taken_over_ = false;  ///< the run was in progress
  bool ends_all_ = false;    ///< the agents' processes end with this launch
  const std::atomic<int>* interrupts_ = nullptr;
  LaunchLinks links_;
};

}  // namespace

int run_launch(const LaunchRequest& request) { return Launch(request).run(); }

}  // namespace isthmus::app
