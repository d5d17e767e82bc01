// The other ranks: `isthmus rank`.

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "isthmus/base/archive.h"
#include "isthmus/base/error.h"
#include "worker/setup/model_setup.h"
#include "worker/setup/rank_briefing.h"
#include "worker/setup/ranks.h"

namespace isthmus::app {

namespace {

/// For this process to end once rank 0 is gone.
constexpr auto patience = std::chrono::seconds(5);

/// Standard input and output as one socket, for a rank that was started by ssh.
class StandardStreams {
 public:
  explicit StandardStreams(std::chrono::milliseconds silence) : ends_(socket_pair()) {
    const int out = dup(STDOUT_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);  // for anything that prints
    std::signal(SIGPIPE, SIG_IGN);
    // The process ends while this thread reads.
    std::thread([silence, to = ends_.second] {
      copy(STDIN_FILENO, to, silence);
      shutdown(to, SHUT_RDWR);
      std::this_thread::sleep_for(patience);
      std::_Exit(exit_status(ErrorKind::network));  // it waits for a rank that is gone
    }).detach();
    sender_ = std::thread([out, from = ends_.second] { copy(from, out, forever); });
  }
  /// Call once the socket is closed: waits until all of it is sent.
  ~StandardStreams() { sender_.join(); }
  StandardStreams(const StandardStreams&) = delete;
  StandardStreams& operator=(const StandardStreams&) = delete;

  /// The caller closes it.
  [[nodiscard]] int socket() const { return ends_.first; }

 private:
  static constexpr std::chrono::milliseconds forever{-1};

  /// Until `from` ends or is silent for so long, or `to` takes no more.
  static void copy(int from, int to, std::chrono::milliseconds silence) {
    std::array<char, 1 << 16> bytes{};
    for (;;) {
      pollfd waiting{from, POLLIN, 0};
      const int ready = poll(&waiting, 1, static_cast<int>(silence.count()));
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0) return;
      const auto n = read(from, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      for (ssize_t done = 0; done < n;) {
        const auto written = write(to, bytes.data() + done, static_cast<std::size_t>(n - done));
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return;
        done += written;
      }
    }
  }

  std::pair<int, int> ends_;
  std::thread sender_;
};

/// The orders are structs as they are in memory.
void check_build(const std::string& rank_0, const std::string& own) {
  if (rank_0 == own) return;
  config_error(
      fmt::format("this is build {} and rank 0 has build {}; install the same on all of "
                  "replica.machines",
                  own, rank_0));
}

int follow(const RankRequest& request, int socket) {
  trainer::RankLink link(socket, "rank 0");
  const auto build = link.text();
  if (request.socket < 0) check_build(build, request.build);
  const auto text = link.text();
  const auto briefing = from_bytes<Briefing>(std::as_bytes(std::span(text)));
  auto experiment = load_experiment(config::Source::from_text(briefing.yaml, "the setup of rank 0"), {}, {},
                                    Purpose::inference);
  const auto& replica_config = experiment.replica;
  const Hardware hardware(experiment, static_cast<int>(request.rank % replica_config.ranks_per_machine()));
  const trainer::ParameterTable table({experiment.model, briefing.vocab}, experiment.outer.num_fragments,
                                      static_cast<std::uint64_t>(experiment.outer.chunk_elements));
  const auto group =
      group_options(request.folder, request.rank, replica_config, hardware.device, briefing.port);
  trainer::Replica replica(
      table, trainer::rank_options(
                 replica_options(experiment, hardware.device, hardware.precision, briefing.separator), table,
                 group.rank, group.ranks, replica_config.zero));
  trainer::follow_rank_0(link, replica, group, replica_config.zero, *hardware.memory);
  return 0;
}

}  // namespace

int run_rank(const RankRequest& request) {
  try {
    if (request.socket >= 0) return follow(request, request.socket);
    const StandardStreams streams(request.silence);
    return follow(request, streams.socket());
  } catch (const Error& error) {
    const auto who = fmt::format("{} rank {}", request.folder.filename().string(), request.rank);
    throw Error(error.kind(), who + ": " + error.what());
  }
}

}  // namespace isthmus::app
