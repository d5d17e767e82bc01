#include "launch/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/text_file.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "isthmus/outer_sync/transport/address.h"
#include "isthmus/trainer/checkpoint_folder.h"
#include "launch/detach.h"
#include "launch/launch_places.h"
#include "launch/local_run.h"
#include "launch/restarts.h"
#include "launch/site_links.h"
#include "run/experiment.h"
#include "run/joined.h"
#include "run/json_output.h"
#include "run/machine.h"
#include "run/run_folder.h"
#include "run/signals.h"

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
          return files_of(lock_ ? LaunchConfig{config_file(), {}} : config(), experiment_, site, facts);
        }) {
    check_reach(config(), experiment_);
    if (experiment_.trainer.threads > 0 || places_.processes == 0) return;
    // Other machines have other cores.
    (anybody_elsewhere() ? threads_here_ : experiment_.trainer.threads) = threads_each(places_.processes);
  }

  ~Launch() override { leave_sites(); }

  int run() {
    if (request_.started_fd < 0) return run_here();
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
    std::atomic<int> interrupts = 0;
    const SignalThread signals([&](int, int count) { interrupts = count; });
    // First: a launch that starts nothing moves no folder.
    if (!links_.connect(interrupts)) return 130;
    prepare_folder();
    if (request_.started_fd >= 0) detach();
    start(interrupts);
    say_started(request_.started_fd);
    const int status = watch(interrupts, std::chrono::duration<double>(experiment_.run.stop_grace.seconds));
    if (request_.resume && !has_begun()) restore_config();
    keep_summary();
    print_json(status);
    leave_sites();
    return status;
  }

  /// Before anything goes of what their threads speak to.
  void leave_sites() {
    for (auto& process : processes_) process.reset();
    processes_.clear();
    links_.leave();
  }

  void detach() {
    if (!places_.reader.empty())
      throw Error(ErrorKind::config, "data.path is - for " + places_.reader +
                                         ", and a launch that is detached has no "
                                         "standard input; expected a stream like tcp://HOST:PORT");
    begin_log(experiment_.folder(), request_.started_fd);
    logged_ = true;
  }

  Experiment load() {
    const auto file = request_.resume ? request_.config / "config.yaml" : request_.config;
    auto experiment = load_experiment(file, request_.assignments);
    if (!experiment.auto_note.empty()) fmt::print("{}\n", experiment.auto_note);
    if (request_.resume) {  // the folder may have moved since
      const auto folder = std::filesystem::absolute(request_.config).lexically_normal();
      const auto clean = folder.has_filename() ? folder : folder.parent_path();
      experiment.run.out = clean.parent_path().string();
      if (clean.filename() != experiment.run.name) experiment.run.name = clean.filename().string();
    }
    return experiment;
  }

  /// The experiment as one of its workers has it, where that is on this machine.
  [[nodiscard]] Experiment of_worker(const std::string& name) const {
    if (experiment_.sites.empty()) return experiment_;
    return load_experiment(file(), request_.assignments, WorkerPlace{name, {}});
  }
  [[nodiscard]] std::filesystem::path file() const {
    return request_.resume ? request_.config / "config.yaml" : request_.config;
  }
  [[nodiscard]] LaunchConfig config() const { return {file(), request_.assignments}; }

  // ---- the folder ----

  void prepare_folder() {
    if (!request_.resume) make_room(experiment_.folder());
    lock_.emplace(experiment_.folder(), patience_with_the_killed);
    if (request_.resume) check_checkpoints();
    config_before_ = text_if_there(config_file());
    metrics_before_ = metrics_size();
    replace_file(config_file(), to_yaml(experiment_));
  }

  std::filesystem::path config_file() const { return experiment_.folder() / "config.yaml"; }

  /// Settings with which a run could not be resumed must not stand in the way of the next try.
  void restore_config() const { replace_file(config_file(), config_before_); }

  /// Grows as soon as replicas of this machine are in the run.
  std::uintmax_t metrics_size() const {
    std::uintmax_t sum = 0;
    for (const auto& name : worker_names(experiment_)) {
      std::error_code no_file;
      const auto size = std::filesystem::file_size(experiment_.folder() / name / "metrics.jsonl", no_file);
      sum += no_file ? 0 : size;
    }
    return sum;
  }

  bool has_begun() const { return metrics_size() > metrics_before_ || links_.begun(); }

  /// Said at once, and not after all replicas have loaded their data. Of sites elsewhere the coordinator says
  /// it.
  void check_checkpoints() const {
    if (!experiment_.worker.words().empty()) return;  // where that program keeps its own is not known
    std::vector<std::vector<std::uint64_t>> steps;
    for (const auto& [name, place] : places_.of) {
      if (place.site != nullptr && place.site->is_elsewhere()) return;
      auto theirs = trainer::checkpoint_steps(experiment_.folder() / name / "checkpoints", 0);
      // Who has none takes the state from the others, where the method knows newcomers.
      if (!theirs.empty() || experiment_.outer.data_parallel()) steps.push_back(std::move(theirs));
    }
    if (trainer::latest_common_step(steps)) return;
    throw Error(ErrorKind::data, fmt::format("{} has no checkpoint that all {} replicas have; start without "
                                             "--resume",
                                             experiment_.folder().string(), experiment_.replicas));
  }

  /// Of a coordinator that is elsewhere.
  void keep_summary() {
    const auto* site = coordinator_site(experiment_);
    if (site == nullptr || processes_.empty() || !links_.loss(*site).empty()) return;
    const auto text = links_.to(*site)->summary();
    if (!text.empty()) replace_file(experiment_.folder() / "summary.json", text);
  }

  // ---- starting ----

  void start(const std::atomic<int>& interrupts) {
    restarts_.emplace(experiment_.run.restarts);
    if (!start_any_coordinator(request_.resume, experiment_.network.coordinator, interrupts)) return;
    for (const auto& name : worker_names(experiment_)) {
      if (is_started_here(name)) processes_.push_back(start_worker(name));
    }
    for (const auto& site : experiment_.sites) {
      const auto kind = site.launch.kind();
      if (kind == Kind::slurm || kind == Kind::kubernetes)
        fmt::print(stderr,
                   "site {} is {}'s: the run waits for {}; launch --render {} writes what starts them\n",
                   site.name, to_string(kind), joined(site.workers(), ", "), to_string(kind));
    }
    for (std::int64_t k = 0; k < experiment_.reducers; ++k) {
      reducers_.insert(fmt::format("reducer-{}", k));
      processes_.push_back(start_worker(fmt::format("reducer-{}", k)));
    }
  }

  /// One that only reduces, and the coordinator, stand at no site.
  [[nodiscard]] Place place_of(const std::string& name) const {
    const auto found = places_.of.find(name);
    return found == places_.of.end() ? Place{} : found->second;
  }
  [[nodiscard]] bool is_started_here(const std::string& worker) const {
    const auto* site = places_.of.at(worker).site;
    return site == nullptr || site->launch.kind() == Kind::local || site->launch.kind() == Kind::ssh;
  }

  /// False where it does not listen: then its end is seen, and said, by `watch`.
  bool start_any_coordinator(bool resume, const std::string& address, const std::atomic<int>& interrupts) {
    const auto* site = coordinator_site(experiment_);
    const auto listen = anybody_elsewhere() ? coordinator_listen(address) : address;
    if (site == nullptr) {
      if (!start_coordinator(coordinator_command(resume), listen)) return false;
      port_ = outer_sync::parse_address(LocalRun::address(), "the coordinator").port;
      return true;
    }
    const auto link = links_.to(*site);
    if (processes_.empty()) processes_.emplace_back();
    processes_.front().reset();  // first: what it leaves is not the new one's
    SiteStart start{
        .name = tls::coordinator_name,
        .folder = experiment_.run.name,
        .arguments = {"coordinator", "--config",
                      config_there(links_.facts(*site), experiment_.run.name, *site), "--listen", listen},
        .coordinates = true};
    if (resume) start.arguments.emplace_back("--resume");
    auto process = link->start(start);
    const auto port = link->await_port(*process, interrupts);
    port_ = port.value_or(port_);
    processes_.front() = std::move(process);
    return port.has_value();
  }

  [[nodiscard]] bool anybody_elsewhere() const {
    return std::ranges::any_of(experiment_.sites, [](const Site& site) { return site.is_elsewhere(); });
  }

  std::vector<std::string> coordinator_command(bool resume) const {
    auto command = request_.program;
    command.insert(command.end(), {"coordinator", "--config", config_file().string()});
    if (resume) command.emplace_back("--resume");
    return command;
  }

  std::unique_ptr<RunProcess> start_worker(const std::string& name) {
    std::filesystem::create_directories(experiment_.folder() / name);
    const auto log = experiment_.folder() / name / "worker.log";
    const auto place = place_of(name);
    if (place.site != nullptr && place.site->is_elsewhere()) return start_at_site(place, log);
    auto command = worker_command(name);
    if (request_.resume) command.emplace_back("--resume");
    return std::make_unique<Process>(Process::Options{.name = name,
                                                      .command = std::move(command),
                                                      .log = log,
                                                      .keep_fd = -1,
                                                      .standard_input = name == places_.reader,
                                                      .environment = gpu_environment(place.gpus)});
  }

  std::unique_ptr<RunProcess> start_at_site(const Place& place, const std::filesystem::path& log) {
    const auto& site = *place.site;
    const auto link = links_.to(site);
    const auto& facts = links_.facts(site);
    auto start = start_there({"worker", "--quiet", "--config"}, {config_file(), {}}, experiment_.run.name,
                             site, place.index, facts);
    start.arguments.insert(start.arguments.end(), {"--coordinator", address_for(&site)});
    start.log = log;
    if (request_.resume) start.arguments.emplace_back("--resume");
    return link->start(start);
  }

  std::string address_for(const Site* site) const {
    return anybody_elsewhere() ? address_at(experiment_, site, port_) : LocalRun::address();
  }

  std::vector<std::string> worker_command(const std::string& name) const {
    const auto place = place_of(name);
    auto command = request_.program;
    command.insert(command.end(), {"worker", "--quiet", "--config", config_file().string(), "--coordinator",
                                   address_for(place.site), "--name", name});
    if (threads_here_ > 0)
      command.insert(command.end(), {"--set", fmt::format("trainer.threads={}", threads_here_)});
    if (place.index > 0) add_ports(command, of_worker(name).network, place.index);
    if (reducers_.contains(name)) command.emplace_back("--reduce-only");
    return command;
  }

  // ---- while it runs ----

  /// A run that has begun goes on without a worker that is lost, and without its coordinator too, for a
  /// while.
  void keep_going() override {
    if (!elastic()) return;
    if (died(*processes_.front()) && coordinator_restarts_left_ > 0) {
      --coordinator_restarts_left_;
      fmt::print(stderr, "the coordinator {}; starting it again\n", fate(*processes_.front()));
      // It takes up the run that is going on, and does not resume an older one.
      const std::atomic<int> nobody = 0;
      const auto same_port = coordinator_address_again();
      static_cast<void>(start_any_coordinator(false, same_port, nobody));
    }
    for (std::size_t i = 1; i < processes_.size(); ++i) {
      auto& worker = processes_[i];
      const int status = worker->poll().value_or(0);
      if (status == 0 || told(*worker)) continue;
      if ((status > 128 || status == exit_status(ErrorKind::network)) && processes_.front()->running()) {
        const auto answer = restarts_->ask(worker->name(), Clock::now());
        if (answer == Restarts::Answer::later) continue;
        if (answer == Restarts::Answer::now) {
          fmt::print(stderr, "{} {}; starting it again\n", worker->name(), fate(*worker));
          const auto name = worker->name();
          worker.reset();  // first: what it leaves is not the new one's
          worker = start_worker(name);
          continue;
        }
      }
      describe(*worker, status);
      fmt::print(stderr, "the others go on; to bring it back: {}\n", way_back(worker->name()));
    }
  }

  /// Killed, or lost with the machine that it was on.
  bool died(RunProcess& coordinator) const {
    const int status = coordinator.poll().value_or(0);
    const auto* site = coordinator_site(experiment_);
    const bool lost = site != nullptr && !links_.loss(*site).empty();
    return status > 128 || (lost && status != 0);
  }

  std::string coordinator_address_again() const {
    if (coordinator_site(experiment_) == nullptr && !anybody_elsewhere()) return LocalRun::address();
    return coordinator_address(experiment_.network.coordinator, port_);
  }

  /// How a process has ended; of one that was lost with its site's connection, why that was.
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

  /// Whether a loss does not end the run: it has begun, and its method knows members that come and go.
  bool elastic() const override { return !experiment_.outer.data_parallel() && has_begun(); }

  bool trains(const RunProcess& process) const override { return !reducers_.contains(process.name()); }
  bool more_will_train() const override {
    return restarts_->any_waits() ||
           std::ranges::any_of(places_.of, [&](const auto& place) { return !is_started_here(place.first); });
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
  JsonOutput output_;  ///< before all that speaks
  Experiment experiment_;
  Places places_;
  std::set<std::string> reducers_;  ///< by name
  std::optional<Restarts> restarts_;
  int coordinator_restarts_left_ = 3;
  std::int64_t threads_here_ = 0;  ///< of each rank of workers of this machine; 0: as the config says
  std::uint16_t port_ = 0;         ///< the coordinator's
  std::optional<FolderLock> lock_;
  std::string config_before_;
  std::uintmax_t metrics_before_ = 0;
  bool logged_ = false;
  SiteLinks links_;
};

}  // namespace

int run_launch(const LaunchRequest& request) { return Launch(request).run(); }

}  // namespace isthmus::app
