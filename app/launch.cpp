#include "launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "experiment.h"
#include "isthmus/base/error.h"
#include "isthmus/trainer/checkpoint_folder.h"
#include "local_run.h"
#include "ranks.h"
#include "run_folder.h"
#include "signals.h"

namespace isthmus::app {

namespace {

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

class Launch final : public LocalRun {
 public:
  explicit Launch(const LaunchRequest& request) : request_(request), experiment_(load()) {}

  int run() {
    prepare_folder();
    std::atomic<int> interrupts = 0;
    const SignalThread signals([&](int, int count) { interrupts = count; });
    start();
    const int status = watch(interrupts, std::chrono::duration<double>(experiment_.run.stop_grace.seconds));
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
    if (experiment.trainer.threads == 0)
      experiment.trainer.threads = threads_each(training_processes(file, experiment));
    find_reader(file, experiment);
    return experiment;
  }

  /// All ranks of all replicas.
  [[nodiscard]] std::int64_t training_processes(const std::filesystem::path& file,
                                                const Experiment& experiment) const {
    if (experiment.sites.empty()) return experiment.replicas * experiment.replica.ranks;
    std::int64_t sum = 0;
    for (const auto& name : worker_names(experiment))
      sum += load_experiment(file, request_.assignments, WorkerPlace{name, {}}).replica.ranks;
    return sum;
  }

  /// The one worker whose stream is this process's standard input.
  void find_reader(const std::filesystem::path& file, const Experiment& experiment) {
    for (const auto& name : worker_names(experiment)) {
      const auto own = experiment.sites.empty()
                           ? experiment.data
                           : load_experiment(file, request_.assignments, WorkerPlace{name, {}}).data;
      if (!own.reads_standard_input()) continue;
      if (!reader_.empty()) {
        throw Error(ErrorKind::config,
                    fmt::format("data.path is - for {} and {}; expected a stream of its own for each worker, "
                                "like tcp://HOST:PORT or unix:///PATH: standard input is one",
                                reader_, name));
      }
      reader_ = name;
    }
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
    for (const auto& name : worker_names(experiment_)) {
      auto theirs = trainer::checkpoint_steps(experiment_.folder() / name / "checkpoints", 0);
      // Who has none takes the state from the others, where the method knows newcomers.
      if (!theirs.empty() || experiment_.outer.data_parallel()) steps.push_back(std::move(theirs));
    }
    if (trainer::latest_common_step(steps)) return;
    throw Error(ErrorKind::data, fmt::format("{} has no checkpoint that all {} replicas have; start without "
                                             "--resume",
                                             experiment_.folder().string(), experiment_.replicas));
  }

  void start() {
    restarts_left_ = experiment_.run.restarts;
    if (!start_coordinator(with_resume(coordinator_command(), request_.resume),
                           experiment_.network.coordinator))
      return;
    for (const auto& name : worker_names(experiment_)) processes_.push_back(start_worker(name));
    for (std::int64_t k = 0; k < experiment_.reducers; ++k) {
      reducers_.insert(fmt::format("reducer-{}", k));
      processes_.push_back(start_worker(fmt::format("reducer-{}", k)));
    }
  }

  std::vector<std::string> coordinator_command() const {
    return {request_.program.string(), "coordinator", "--config", config_file().string()};
  }

  std::unique_ptr<Process> start_worker(const std::string& name) const {
    std::filesystem::create_directories(experiment_.folder() / name);
    return std::make_unique<Process>(
        Process::Options{.name = name,
                         .command = with_resume(worker_command(name), request_.resume),
                         .log = experiment_.folder() / name / "worker.log",
                         .keep_fd = -1,
                         .standard_input = name == reader_});
  }

  std::vector<std::string> worker_command(const std::string& name) const {
    std::vector<std::string> command = {
        request_.program.string(), "worker",  "--quiet", "--config", config_file().string(),
        "--coordinator",           address(), "--name",  name};
    if (reducers_.contains(name)) command.emplace_back("--reduce-only");
    return command;
  }

  static std::vector<std::string> with_resume(std::vector<std::string> command, bool resume) {
    if (resume) command.emplace_back("--resume");
    return command;
  }

  /// A run that has begun goes on without a worker that is lost, and without its coordinator too, for a
  /// while.
  void keep_going() override {
    if (!elastic()) return;
    auto& coordinator = *processes_.front();
    if (coordinator.poll().value_or(0) > 128 && coordinator_restarts_left_ > 0) {
      --coordinator_restarts_left_;
      fmt::print(stderr, "the coordinator was killed by signal {}; starting it again\n",
                 *coordinator.poll() - 128);
      // It takes up the run that is going on, and does not resume an older one.
      static_cast<void>(start_coordinator(coordinator_command(), address()));
    }
    for (std::size_t i = 1; i < processes_.size(); ++i) {
      auto& worker = processes_[i];
      const int status = worker->poll().value_or(0);
      if (status == 0 || told(*worker)) continue;
      if (status > 128 && restarts_left_ > 0) {
        --restarts_left_;
        fmt::print(stderr, "{} was killed by signal {}; starting it again\n", worker->name(), status - 128);
        worker = start_worker(worker->name());
        continue;
      }
      describe(*worker, status);
      std::string command;
      for (const auto& word : worker_command(worker->name())) command += word + " ";
      fmt::print(stderr, "the others go on; to bring it back: {}\n", command);
    }
  }

  /// Whether a loss does not end the run: it has begun, and its method knows members that come and go.
  bool elastic() const override {
    return !experiment_.outer.data_parallel() && metrics_size() > metrics_before_;
  }

  bool trains(const Process& process) const override { return !reducers_.contains(process.name()); }

  const LaunchRequest& request_;
  std::string reader_;  ///< the worker that has standard input, if one has
  Experiment experiment_;
  std::set<std::string> reducers_;  ///< by name
  std::int64_t restarts_left_ = 0;  ///< of workers
  int coordinator_restarts_left_ = 3;
  std::optional<FolderLock> lock_;
  std::string config_before_;
  std::uintmax_t metrics_before_ = 0;
};

}  // namespace

int run_launch(const LaunchRequest& request) { return Launch(request).run(); }

}  // namespace isthmus::app
