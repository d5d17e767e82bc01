#include "worker/setup/ranks.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "isthmus/base/archive.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/plan/predict.h"
#include "worker/setup/model_setup.h"
#include "worker/setup/rank_briefing.h"
#include "worker/setup/rank_start.h"

namespace isthmus::app {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto farewell = 5s;  ///< for ranks to end by themselves
constexpr auto poll_every = 10ms;
constexpr auto keepalive_every = 10s;
/// Time from a broken connection until its process is seen to have ended.
constexpr auto aftermath = 2s;

void check_gpus(std::int64_t ranks, trainer::Device device) {
  const auto gpus = trainer::probe_hardware().usable_gpus();
  if (device == trainer::Device::cpu || ranks <= gpus) return;
  throw Error(ErrorKind::config,
              fmt::format("replica.ranks puts {} ranks on this machine and this build can use {} GPUs here; "
                          "expected no more ranks than GPUs: each rank needs its own",
                          ranks, gpus));
}

/// How a child has ended; it stays a zombie, to be collected later.
struct End {
  bool killed;
  int status;  ///< exit status, or the signal
};
/// nullopt while it runs.
std::optional<End> end_of(const Process& process) {
  siginfo_t info{};
  const auto id = static_cast<id_t>(process.pid());
  if (waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return std::nullopt;
  return End{info.si_code != CLD_EXITED, info.si_status};
}

constexpr int cannot_execute = 126, not_found = 127, ssh_failed = 255;  ///< as shells and ssh report them

/// The kind of error with which a rank's process has ended.
ErrorKind kind_of(int status) {
  if (status == cannot_execute || status == not_found) return ErrorKind::config;
  for (const auto kind : {ErrorKind::config, ErrorKind::data, ErrorKind::divergence})
    if (status == exit_status(kind)) return kind;
  return ErrorKind::network;
}

/// Shows ranks on other machines that this one is there, until it is stopped. A machine without power closes
/// no connection.
void remind(const std::stop_token& stop, const std::vector<std::shared_ptr<trainer::RankLink>>& links) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  while (!stopped.wait_for(lock, stop, keepalive_every, [] { return false; }) && !stop.stop_requested()) {
    for (const auto& link : links) link->show_presence();
  }
}

}  // namespace

RankProcesses::RankProcesses(const RankSetup& setup) {
  const auto& replica = setup.experiment.replica;
  check_gpus(replica.ranks_per_machine(), setup.device);
  RankListener listener(replica);
  ranks_.group = group_options(setup.folder, 0, replica, setup.device, listener.port(), listener.release());
  ranks_.zero = replica.zero;
  ranks_.average_every = static_cast<std::uint64_t>(replica.average_every);
  ranks_.fate = [this] { return fate(); };
  std::filesystem::remove(ranks_.group.store);  // left by an earlier process that was killed
  for (std::int64_t rank = 1; rank < replica.ranks; ++rank) {
    const auto [own, childs] = socket_pair();
    ranks_.links.push_back(std::make_shared<trainer::RankLink>(own, rank_name(setup, rank)));
    processes_.push_back(start_rank(setup, rank, childs));
    commands_.push_back(command_elsewhere(setup, rank));
  }
  const auto briefing = to_bytes(briefing_of(setup, listener.port()));
  const std::string text(reinterpret_cast<const char*>(briefing.data()), briefing.size());
  try {
    for (auto& link : ranks_.links) {
      link->send_text(setup.build);
      link->send_text(text);
    }
  } catch (const Error& error) {
    throw Error(fate().value_or(error));
  }
  const auto here = static_cast<std::ptrdiff_t>(replica.ranks_per_machine()) - 1;
  std::vector elsewhere(ranks_.links.begin() + here, ranks_.links.end());
  if (elsewhere.empty()) return;
  keepalive_ =
      std::jthread([links = std::move(elsewhere)](const std::stop_token& stop) { remind(stop, links); });
}

RankProcesses::~RankProcesses() {
  keepalive_ = {};
  ranks_.links.clear();
  const auto until = Clock::now() + farewell;
  const auto run = [](Process& process) { return process.running(); };
  while (std::ranges::any_of(processes_, run) && Clock::now() < until)
    std::this_thread::sleep_for(poll_every);
}

trainer::SiteReplica::Ranks RankProcesses::take_ranks() { return std::exchange(ranks_, {}); }

/// How to find out why a rank on another machine does not run, if that may be the reason; for messages.
std::string RankProcesses::advice(std::size_t index, int status) const {
  constexpr std::array reasons = {1, exit_status(ErrorKind::config), cannot_execute, not_found, ssh_failed};
  if (commands_[index].empty() || std::ranges::find(reasons, status) == reasons.end()) return {};
  return fmt::format("; does `{} --version` (replica.reach) print this version?", commands_[index]);
}

/// The error has the kind of the rank's own, which determines whether the worker is started again.
std::optional<RankProcesses::Fate> RankProcesses::fate_now() const {
  const int lost_another = exit_status(ErrorKind::network);
  std::optional<Fate> fate;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    const auto end = end_of(processes_[i]);
    if (!end) continue;
    const bool is_cause = end->killed || end->status != lost_another;
    if (!is_cause && fate) continue;
    const auto& name = processes_[i].name();
    fate.emplace(end->killed
                     ? Error(ErrorKind::network, fmt::format("{} was killed by signal {}", name, end->status))
                     : Error(kind_of(end->status), fmt::format("{} ended with exit status {}{}", name,
                                                               end->status, advice(i, end->status))),
                 is_cause);
    if (is_cause) break;
  }
  return fate;
}

/// A rank that only lost another one is named only if no other rank has ended.
std::optional<Error> RankProcesses::fate() const {
  const auto until = Clock::now() + aftermath;
  auto fate = fate_now();
  for (; (!fate || !fate->is_cause) && Clock::now() < until; fate = fate_now())
    std::this_thread::sleep_for(poll_every);
  return fate ? std::optional(fate->error) : std::nullopt;
}

RankWatch::RankWatch(const RankProcesses& ranks, std::function<void(const Error&)> lost)
    : ranks_(ranks), lost_(std::move(lost)), wake_(eventfd(0, EFD_CLOEXEC)) {
  std::vector<int> descriptors = {wake_};
  for (const auto& process : ranks.processes())
    descriptors.push_back(static_cast<int>(syscall(SYS_pidfd_open, process.pid(), 0)));
  thread_ = std::thread([this, descriptors = std::move(descriptors)] { watch(descriptors); });
}

RankWatch::~RankWatch() {
  const std::uint64_t one = 1;
  static_cast<void>(write(wake_, &one, sizeof one));
  thread_.join();
  close(wake_);
}

void RankWatch::watch(std::vector<int> descriptors) {
  std::vector<pollfd> waiting;
  waiting.reserve(descriptors.size());
  for (const int descriptor : descriptors) waiting.push_back({descriptor, POLLIN, 0});
  while (poll(waiting.data(), waiting.size(), -1) < 0 && errno == EINTR) {
  }
  if (waiting.front().revents == 0)
    lost_(ranks_.fate().value_or(Error(ErrorKind::network, "a rank of this replica has ended")));
  for (std::size_t i = 1; i < descriptors.size(); ++i) close(descriptors[i]);
}

std::unique_ptr<RankProcesses> start_ranks(const Experiment& experiment, const ModelSetup& setup,
                                           const WorkerRequest& request,
                                           const std::filesystem::path& folder) {
  if (experiment.replica.ranks == 1) return nullptr;
  return std::make_unique<RankProcesses>(RankSetup{.experiment = experiment,
                                                   .folder = folder,
                                                   .name = request.name,
                                                   .vocab = setup.corpus.vocab_size(),
                                                   .separator = setup.corpus.mask_separator(),
                                                   .device = setup.hardware.device,
                                                   .precision = setup.hardware.precision,
                                                   .build = request.build,
                                                   .program = request.program});
}

std::unique_ptr<trainer::Replica> make_replica(const Experiment& experiment, const ModelSetup& setup,
                                               RankProcesses* ranks) {
  const auto options = replica_options(experiment, setup.hardware.device, setup.hardware.precision,
                                       setup.corpus.mask_separator());
  if (ranks == nullptr) return std::make_unique<trainer::Replica>(setup.table, options);
  return std::make_unique<trainer::SiteReplica>(setup.table, options, ranks->take_ranks());
}

std::string ranks_text(const trainer::ReplicaConfig& replica) {
  const auto machines = std::max<std::size_t>(1, replica.machine_list().size());
  return fmt::format("{} ranks{}{}", replica.ranks,
                     machines > 1 ? fmt::format(" on {} machines", machines) : "",
                     replica.average_every > 1
                         ? fmt::format(", with parameters averaged every {} steps", replica.average_every)
                         : "");
}

std::vector<std::string> notes_on_ranks(const Experiment& experiment) {
  const auto every = experiment.replica.average_every;
  if (every == 1) return {};
  if (experiment.replica.ranks == 1)
    return {fmt::format("replica.average_every is {} and has no effect: replica.ranks is 1", every)};
  const auto syncs = static_cast<std::int64_t>(outer_sync::plan::last_sync_every(experiment.outer));
  if (every < syncs) return {};
  return {fmt::format(
      "replica.average_every is {} and outer.sync_every is {}: the ranks average mostly at syncs; "
      "expected several averages between two syncs",
      every, syncs)};
}

void abort_ranks(trainer::Replica& replica) {
  if (auto* site = dynamic_cast<trainer::SiteReplica*>(&replica)) site->abort();
}

trainer::ReplicaOptions replica_options(const Experiment& experiment, trainer::Device device,
                                        trainer::Precision precision, std::int64_t separator) {
  return {.inner = experiment.inner,
          .device = device,
          .precision = precision,
          .longest_sequence = experiment.data.seq_len,
          .seed = static_cast<std::uint64_t>(experiment.run.seed),
          .separator = separator,
          .trainer = experiment.trainer};
}

}  // namespace isthmus::app
