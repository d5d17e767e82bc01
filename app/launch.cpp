#include "launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "experiment.h"
#include "isthmus/base/error.h"
#include "process.h"
#include "signals.h"

namespace isthmus::app {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

constexpr auto poll_every = 20ms;
/// After one process has ended, the others get this long to notice and end by themselves.
constexpr auto aftermath = 3s;

/// A new run never writes over an old one: the old folder gets a number.
void make_room(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder)) return;
  for (int n = 1;; ++n) {
    const auto kept = folder.string() + "." + std::to_string(n);
    if (std::filesystem::exists(kept)) continue;
    std::filesystem::rename(folder, kept);
    fmt::print("the run that was in {} is now in {}\n", folder.string(), kept);
    return;
  }
}

void write_config(Experiment& experiment, const std::filesystem::path& file) {
  std::ofstream out(file);
  out << config::to_yaml(experiment);
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
    const SignalThread signals([&](int count) { interrupts = count; });
    start();
    return watch(interrupts);
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
    std::filesystem::create_directories(experiment_.folder());
    write_config(experiment_, experiment_.folder() / "config.yaml");
  }

  void start() {
    const auto config = (experiment_.folder() / "config.yaml").string();
    Pipe pipe;
    processes_.emplace_back(
        Process::Options{.name = "coordinator",
                         .command = with_resume({request_.program.string(), "coordinator", "--config", config,
                                                 "--announce-fd", std::to_string(pipe.ends[1])}),
                         .log = {},
                         .keep_fd = pipe.ends[1]});
    pipe.close_writer();
    const auto port = pipe.read_all();
    if (port.empty()) return;  // it has said why on standard error; `watch` sees it end
    const auto host = outer_sync_host(experiment_.network.coordinator);
    const auto address = host + ":" + port.substr(0, port.find('\n'));
    const auto digits = std::to_string(experiment_.replicas - 1).size();
    for (std::int64_t m = 0; m < experiment_.replicas; ++m) {
      const auto name = fmt::format("replica-{:0{}}", m, digits);
      const auto folder = experiment_.folder() / name;
      std::filesystem::create_directories(folder);
      processes_.emplace_back(
          Process::Options{.name = name,
                           .command = with_resume({request_.program.string(), "worker", "--quiet", "--config",
                                                   config, "--coordinator", address, "--name", name}),
                           .log = folder / "worker.log",
                           .keep_fd = -1});
    }
  }

  std::vector<std::string> with_resume(std::vector<std::string> command) const {
    if (request_.resume) command.emplace_back("--resume");
    return command;
  }

  static std::string outer_sync_host(const std::string& address) {
    return address.substr(0, address.rfind(':'));
  }

  int watch(const std::atomic<int>& interrupts) {
    const auto grace = std::chrono::duration<double>(experiment_.run.stop_grace.seconds);
    int seen = 0;
    std::optional<Clock::time_point> kill_at;
    while (std::ranges::any_of(processes_, &Process::running)) {
      if (interrupts > seen) {
        seen = interrupts;
        processes_.front().signal(SIGINT);
        const auto limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(grace - 500ms);
        kill_at = seen > 1 ? Clock::now() : limit;
      }
      if (!kill_at && somebody_failed()) {
        for (const auto& process : processes_) process.signal(SIGTERM);
        kill_at = Clock::now() + aftermath;
      }
      if (kill_at && Clock::now() >= *kill_at) kill_rest();
      std::this_thread::sleep_for(poll_every);
    }
    return verdict(seen > 0);
  }

  bool somebody_failed() {
    for (auto& process : processes_) {
      const auto status = process.poll();
      if (status && *status != 0 && failed_.empty()) failed_ = process.name();
    }
    return !failed_.empty();
  }

  void kill_rest() {
    for (auto& process : processes_) {
      if (!process.running()) continue;
      fmt::print(stderr, "killing {}, which did not end by itself\n", process.name());
      process.signal(SIGKILL);
      killed_ = true;
    }
  }

  int verdict(bool interrupted) {
    std::fflush(stdout);
    int status = 0;
    for (auto& process : processes_) {
      const auto own = process.poll().value_or(0);
      if (own == 0 || own == 130) continue;
      const bool first = process.name() == failed_ || failed_.empty();
      if (status == 0 || first) status = own;
      if (!process.log().empty()) {
        fmt::print(stderr, "{} failed with exit status {}; the end of {}:\n{}", process.name(), own,
                   process.log().string(), tail_of(process.log(), 6));
      }
    }
    if (interrupted) return killed_ ? 1 : 130;
    return status;
  }

  const LaunchRequest& request_;
  Experiment experiment_;
  std::vector<Process> processes_;  ///< the coordinator first
  std::string failed_;              ///< the first process that failed
  bool killed_ = false;
};

}  // namespace

int run_launch(const LaunchRequest& request) { return Launch(request).run(); }

}  // namespace isthmus::app
