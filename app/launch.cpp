#include "launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "experiment.h"
#include "isthmus/base/error.h"
#include "isthmus/trainer/checkpoint.h"
#include "process.h"
#include "run_folder.h"
#include "signals.h"

namespace isthmus::app {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

constexpr auto poll_every = 20ms;
/// After one process has ended, the others get this long to notice and end by themselves.
constexpr auto aftermath = 3s;
const int lost_status = Error(ErrorKind::network, "").exit_status();

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw Error(ErrorKind::data, "cannot write " + file.string());
}

/// What a child may still need of the pipe's two ends.
struct Pipe {
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0) throw Error(ErrorKind::data, "cannot make a pipe");
  }
  ~Pipe() {
    close(ends[0]);
    if (ends[1] >= 0) close(ends[1]);
  }
  void close_writer() { close(std::exchange(ends[1], -1)); }
  /// What was written until all writers closed it.
  [[nodiscard]] std::string read_all() const {
    std::string text;
    char buffer[64];
    for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(n));
    return text;
  }
  int ends[2] = {-1, -1};
};

class Launch {
 public:
  explicit Launch(const LaunchRequest& request) : request_(request), experiment_(load()) {}

  int run() {
    prepare_folder();
    std::atomic<int> interrupts = 0;
    const SignalThread signals([&](int, int count) { interrupts = count; });
    start();
    const int status = watch(interrupts);
    if (request_.resume && metrics_size() == metrics_before_) restore_config();
    return status;
  }

 private:
  Experiment load() {
    const auto file = request_.resume ? request_.config / "config.yaml" : request_.config;
    auto experiment = load_experiment(file, request_.assignments);
    if (request_.resume) {  // the folder may have moved since
      const auto folder = std::filesystem::absolute(request_.config).lexically_normal();
      const auto clean = folder.has_filename() ? folder : folder.parent_path();
      experiment.run.out = clean.parent_path().string();
      if (clean.filename() != experiment.run.name) experiment.run.name = clean.filename().string();
    }
    if (experiment.trainer.threads == 0) {
      const auto cores = std::max(1U, std::thread::hardware_concurrency());
      experiment.trainer.threads = std::max<std::int64_t>(1, cores / experiment.replicas);
    }
    return experiment;
  }

  void prepare_folder() {
    if (!request_.resume) make_room(experiment_.folder());
    lock_.emplace(experiment_.folder());
    if (request_.resume) check_checkpoints();
    config_before_ = text_of(config_file());
    metrics_before_ = metrics_size();
    write_text(config_file(), to_yaml(experiment_));
  }

  std::filesystem::path config_file() const { return experiment_.folder() / "config.yaml"; }

  /// Settings with which a run could not be resumed must not stand in the way of the next try.
  void restore_config() const { write_text(config_file(), config_before_); }

  /// Grows as soon as replicas are in the run.
  std::uintmax_t metrics_size() const {
    std::uintmax_t sum = 0;
    for (const auto& name : worker_names(experiment_)) {
      std::error_code no_file;
      const auto size = std::filesystem::file_size(experiment_.folder() / name / "metrics.jsonl", no_file);
      sum += no_file ? 0 : size;
    }
    return sum;
  }

  /// Said at once, and not after all replicas have loaded their data.
  void check_checkpoints() const {
    std::vector<std::vector<std::uint64_t>> steps;
    for (const auto& name : worker_names(experiment_))
      steps.push_back(trainer::checkpoint_steps(experiment_.folder() / name / "checkpoints", 0));
    if (trainer::latest_common_step(steps)) return;
    throw Error(ErrorKind::data, fmt::format("{} has no checkpoint that all {} replicas have; start without "
                                             "--resume",
                                             experiment_.folder().string(), experiment_.replicas));
  }

  void start() {
    restarts_left_ = experiment_.run.restarts;
    start_coordinator(experiment_.network.coordinator, request_.resume);
    if (address_.empty()) return;  // it has said why on standard error; `watch` sees it end
    for (const auto& name : worker_names(experiment_)) processes_.push_back(start_worker(name));
    for (std::int64_t k = 0; k < experiment_.reducers; ++k) {
      reducers_.insert(fmt::format("reducer-{}", k));
      processes_.push_back(start_worker(fmt::format("reducer-{}", k)));
    }
  }

  /// One that is started again takes up the run that is going on; it does not resume an older one.
  void start_coordinator(const std::string& listen, bool resume) {
    Pipe pipe;
    Process::Options options{
        .name = "coordinator",
        .command = with_resume({request_.program.string(), "coordinator", "--config", config_file().string(),
                                "--listen", listen, "--announce-fd", std::to_string(pipe.ends[1])},
                               resume),
        .log = {},
        .keep_fd = pipe.ends[1]};
    if (processes_.empty()) processes_.emplace_back();
    processes_.front() = std::make_unique<Process>(std::move(options));
    pipe.close_writer();
    const auto port = pipe.read_all();
    if (port.empty()) return;
    const auto& wanted = experiment_.network.coordinator;
    address_ = wanted.substr(0, wanted.rfind(':')) + ":" + port.substr(0, port.find('\n'));
  }

  std::unique_ptr<Process> start_worker(const std::string& name) const {
    std::filesystem::create_directories(experiment_.folder() / name);
    return std::make_unique<Process>(
        Process::Options{.name = name,
                         .command = with_resume(worker_command(name), request_.resume),
                         .log = experiment_.folder() / name / "worker.log",
                         .keep_fd = -1});
  }

  std::vector<std::string> worker_command(const std::string& name) const {
    std::vector<std::string> command = {
        request_.program.string(), "worker", "--quiet", "--config", config_file().string(),
        "--coordinator",           address_, "--name",  name};
    if (reducers_.contains(name)) command.emplace_back("--reduce-only");
    return command;
  }

  static std::vector<std::string> with_resume(std::vector<std::string> command, bool resume) {
    if (resume) command.emplace_back("--resume");
    return command;
  }

  int watch(const std::atomic<int>& interrupts) {
    const auto grace = std::chrono::duration<double>(experiment_.run.stop_grace.seconds);
    int seen = 0;
    bool ending = false;
    std::optional<Clock::time_point> kill_at;
    while (std::ranges::any_of(processes_, [](const auto& process) { return process->running(); })) {
      if (seen == 0 && !ending) keep_going();
      if (interrupts > seen) {
        seen = interrupts;
        processes_.front()->signal(SIGINT);
        const auto limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(grace - 500ms);
        kill_at = seen > 1 ? Clock::now() : limit;
      }
      const bool alone = seen > 0 && !processes_.front()->running();  // workers that wait for no coordinator
      if (!ending && (alone || (seen == 0 && somebody_failed()))) {
        ending = true;
        for (const auto& process : processes_) process->signal(SIGTERM);
        if (!kill_at) kill_at = Clock::now() + aftermath;
      }
      // Whoever was suspended or cut off when the run ended would wait for a coordinator.
      if (!kill_at && !processes_.front()->running())
        kill_at = Clock::now() + std::chrono::duration_cast<Clock::duration>(grace);
      if (kill_at && Clock::now() >= *kill_at) kill_rest();
      std::this_thread::sleep_for(poll_every);
    }
    return verdict(seen > 0);
  }

  /// A run that has begun goes on without a worker that is lost, and without its coordinator too, for a
  /// while.
  void keep_going() {
    if (!elastic()) return;
    auto& coordinator = *processes_.front();
    if (coordinator.poll().value_or(0) > 128 && coordinator_restarts_left_ > 0) {
      --coordinator_restarts_left_;
      fmt::print(stderr, "the coordinator was killed by signal {}; starting it again\n",
                 *coordinator.poll() - 128);
      start_coordinator(address_, false);
    }
    for (std::size_t i = 1; i < processes_.size(); ++i) {
      auto& worker = processes_[i];
      const int status = worker->poll().value_or(0);
      if (status == 0 || told_.contains(worker->name())) continue;
      if (status > 128 && restarts_left_ > 0) {
        --restarts_left_;
        fmt::print(stderr, "{} was killed by signal {}; starting it again\n", worker->name(), status - 128);
        worker = start_worker(worker->name());
        continue;
      }
      told_.insert(worker->name());
      describe(*worker, status);
      std::string command;
      for (const auto& word : worker_command(worker->name())) command += word + " ";
      fmt::print(stderr, "the others go on; to bring it back: {}\n", command);
    }
  }

  /// Whether a loss does not end the run: it has begun, and its method knows members that come and go.
  bool elastic() const { return !experiment_.outer.data_parallel() && metrics_size() > metrics_before_; }

  bool somebody_failed() {
    const auto ended_badly = [](const auto& process) { return process->poll().value_or(0) != 0; };
    if (!elastic()) return std::ranges::any_of(processes_, ended_badly);
    // The coordinator, or all that train.
    return ended_badly(processes_.front()) ||
           std::ranges::none_of(processes_.begin() + 1, processes_.end(), [this](const auto& process) {
             return !reducers_.contains(process->name()) && (process->running() || process->poll() == 0);
           });
  }

  void kill_rest() {
    for (auto& process : processes_) {
      if (!process->running() || killed_.contains(process->name())) continue;
      fmt::print(stderr, "killing {}, which did not end by itself\n", process->name());
      process->signal(SIGKILL);
      killed_.insert(process->name());
    }
  }

  /// Several processes fail when one does. Those that know what is wrong count before one that was killed or
  /// crashed, and both before those that only lost somebody.
  enum class Failure { none, lost_a_peer, died, has_a_reason };

  Failure failure_of(Process& process) const {
    const int status = process.poll().value_or(0);
    const bool asked_to_end = status == 128 + SIGINT || status == 128 + SIGTERM;
    if (status == 0 || asked_to_end || killed_.contains(process.name())) return Failure::none;
    if (status == lost_status) return Failure::lost_a_peer;
    return status == 1 || status > 126 ? Failure::died : Failure::has_a_reason;
  }

  int verdict(bool interrupted) {
    std::fflush(stdout);
    // What became of the others was said when it happened.
    if (elastic() && !interrupted && processes_.front()->poll() == 0) return 0;
    auto worst = Failure::none;
    for (auto& process : processes_) worst = std::max(worst, failure_of(*process));
    if (interrupted && worst <= Failure::lost_a_peer) return killed_.empty() ? 130 : 1;
    if (worst == Failure::none) return exit_status_of_the_sound();
    int status = 0;
    for (auto& process : processes_) {
      if (failure_of(*process) != worst) continue;
      const int own = *process->poll();
      if (status == 0) status = own > 128 ? lost_status : own;
      if (!told_.contains(process->name())) describe(*process, own);
    }
    return status;
  }

  /// 130 if somebody stopped the run past this process.
  int exit_status_of_the_sound() {
    return std::ranges::all_of(processes_, [](const auto& process) { return process->poll() == 0; }) ? 0
                                                                                                     : 130;
  }

  static void describe(const Process& process, int status) {
    const auto how = status > 128 ? fmt::format("was killed by signal {}", status - 128)
                                  : fmt::format("failed with exit status {}", status);
    if (process.log().empty()) {
      fmt::print(stderr, "{} {}\n", process.name(), how);
    } else {
      fmt::print(stderr, "{} {}; the end of {}:\n{}", process.name(), how, process.log().string(),
                 tail_of(process.log(), 6));
    }
  }

  const LaunchRequest& request_;
  Experiment experiment_;
  std::vector<std::unique_ptr<Process>> processes_;  ///< the coordinator first
  std::set<std::string> reducers_;                   ///< by name
  std::set<std::string> killed_;                     ///< by us
  std::set<std::string> told_;                       ///< whose end was spoken of
  std::string address_;                              ///< of the coordinator
  std::int64_t restarts_left_ = 0;                   ///< of workers
  int coordinator_restarts_left_ = 3;
  std::optional<FolderLock> lock_;
  std::string config_before_;
  std::uintmax_t metrics_before_ = 0;
};

}  // namespace

int run_launch(const LaunchRequest& request) { return Launch(request).run(); }

}  // namespace isthmus::app
