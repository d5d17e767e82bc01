#include "worker/setup/ranks.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "isthmus/base/archive.h"
#include "isthmus/base/error.h"
#include "worker/setup/model_setup.h"

namespace isthmus::app {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto farewell = 5s;  ///< for ranks to end by themselves
constexpr auto poll_every = 10ms;
/// Time from a broken connection until its process is seen to have ended.
constexpr auto aftermath = 2s;

/// The setup as it is sent to a rank.
struct Briefing {
  std::string yaml, name;
  std::int64_t vocab = 0, separator = -1;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(yaml, name, vocab, separator);
  }
};

/// Values that rank 0 has chosen replace `auto`.
Briefing briefing_of(RankSetup setup) {
  auto& experiment = setup.experiment;
  experiment.sites.clear();
  experiment.device.device = to_string(setup.device);
  experiment.inner.precision = to_string(setup.precision);
  experiment.trainer.init_from.clear();  // rank 0 gives them its parameters
  return {to_yaml(experiment), setup.name, setup.vocab, setup.separator};
}

/// Both ends are closed on exec; each child explicitly inherits its own end.
std::pair<int, int> socket_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(ErrorKind::data, std::string("cannot make a pair of sockets: ") + std::strerror(errno));
  return {ends[0], ends[1]};
}

std::filesystem::path store_file(const std::filesystem::path& folder) { return folder / "ranks.store"; }

trainer::RankGroupOptions group_options(const std::filesystem::path& folder, std::uint32_t rank,
                                        const trainer::ReplicaConfig& replica, trainer::Device device) {
  return {.store = store_file(folder),
          .rank = rank,
          .ranks = static_cast<std::uint32_t>(replica.ranks),
          .ranks_per_sequence = static_cast<std::uint32_t>(replica.ranks_per_sequence),
          .device = device};
}

void check_gpus(std::int64_t ranks, trainer::Device device) {
  const auto gpus = trainer::probe_hardware().usable_gpus();
  if (device == trainer::Device::cpu || ranks <= gpus) return;
  throw Error(ErrorKind::config, fmt::format("replica.ranks is {} and this build can use {} GPUs here; "
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

}  // namespace

// ---- rank 0 ----

RankProcesses::RankProcesses(const RankSetup& setup) {
  const auto ranks = setup.experiment.replica.ranks;
  check_gpus(ranks, setup.device);
  ranks_.group = group_options(setup.folder, 0, setup.experiment.replica, setup.device);
  ranks_.zero = setup.experiment.replica.zero;
  ranks_.fate = [this] { return fate(); };
  trainer::remove_stores(ranks_.group);  // left by an earlier process that was killed
  for (std::int64_t rank = 1; rank < ranks; ++rank) {
    const auto [own, childs] = socket_pair();
    ranks_.links.push_back(std::make_unique<trainer::RankLink>(own));
    auto command = setup.program;
    command.insert(command.end(), {"rank", "--folder", setup.folder.string(), "--rank", std::to_string(rank),
                                   "--socket", std::to_string(childs)});
    processes_.emplace_back(Process::Options{.name = fmt::format("rank {} of {}", rank, setup.name),
                                             .command = std::move(command),
                                             .log = {},
                                             .keep_fd = childs});
    close(childs);
  }
  const auto briefing = to_bytes(briefing_of(setup));
  const std::string text(reinterpret_cast<const char*>(briefing.data()), briefing.size());
  for (auto& link : ranks_.links) link->send_text(text);
}

RankProcesses::~RankProcesses() {
  ranks_.links.clear();
  const auto until = Clock::now() + farewell;
  const auto run = [](Process& process) { return process.running(); };
  while (std::ranges::any_of(processes_, run) && Clock::now() < until)
    std::this_thread::sleep_for(poll_every);
}

trainer::SiteReplica::Ranks RankProcesses::take_ranks() { return std::exchange(ranks_, {}); }

/// A rank that only lost another one is named only if no other rank has ended.
std::string RankProcesses::fate_now() const {
  const int lost_another = exit_status(ErrorKind::network);
  std::string fate;
  for (const auto& process : processes_) {
    const auto end = end_of(process);
    if (!end) continue;
    const bool is_cause = end->killed || end->status != lost_another;
    if (!is_cause && !fate.empty()) continue;
    fate = fmt::format("{} {} {}", process.name(),
                       end->killed ? "was killed by signal" : "ended with exit status", end->status);
    if (is_cause) break;
  }
  return fate;
}

std::string RankProcesses::fate() const {
  const auto until = Clock::now() + aftermath;
  auto fate = fate_now();
  for (; fate.empty() && Clock::now() < until; fate = fate_now()) std::this_thread::sleep_for(poll_every);
  return fate;
}

RankWatch::RankWatch(const RankProcesses& ranks, std::function<void(const std::string&)> lost)
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
  for (const int descriptor : descriptors) waiting.push_back({descriptor, POLLIN, 0});
  while (poll(waiting.data(), waiting.size(), -1) < 0 && errno == EINTR) {
  }
  if (waiting.front().revents == 0) lost_(ranks_.fate());
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
                                                   .program = request.program});
}

std::unique_ptr<trainer::Replica> make_replica(const Experiment& experiment, const ModelSetup& setup,
                                               RankProcesses* ranks) {
  const auto options = replica_options(experiment, setup.hardware.device, setup.hardware.precision,
                                       setup.corpus.mask_separator());
  if (ranks == nullptr) return std::make_unique<trainer::Replica>(setup.table, options);
  return std::make_unique<trainer::SiteReplica>(setup.table, options, ranks->take_ranks());
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

// ---- the others ----

namespace {

int follow(const RankRequest& request) {
  trainer::RankLink link(request.socket);
  const auto text = link.text();
  const auto briefing = from_bytes<Briefing>(std::as_bytes(std::span(text)));
  auto experiment = load_experiment(config::Source::from_text(briefing.yaml, "the setup of rank 0"), {}, {},
                                    Purpose::inference);
  const Hardware hardware(experiment, static_cast<int>(request.rank));
  const trainer::ParameterTable table({experiment.model, briefing.vocab}, experiment.outer.num_fragments,
                                      static_cast<std::uint64_t>(experiment.outer.chunk_elements));
  const auto group = group_options(request.folder, request.rank, experiment.replica, hardware.device);
  trainer::Replica replica(
      table, trainer::rank_options(
                 replica_options(experiment, hardware.device, hardware.precision, briefing.separator), table,
                 group.rank, group.ranks, experiment.replica.zero));
  trainer::follow_rank_0(link, replica, group, experiment.replica.zero, *hardware.memory);
  return 0;
}

}  // namespace

int run_rank(const RankRequest& request) {
  try {
    return follow(request);
  } catch (const Error& error) {
    const auto who = fmt::format("{} rank {}", request.folder.filename().string(), request.rank);
    throw Error(error.kind(), who + ": " + error.what());
  }
}

}  // namespace isthmus::app
