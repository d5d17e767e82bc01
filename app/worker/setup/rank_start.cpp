#include "worker/setup/rank_start.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/error.h"
#include "worker/setup/rank_briefing.h"

namespace isthmus::app {

RankListener::RankListener(const trainer::ReplicaConfig& replica) {
  const auto machines = replica.machine_list();
  if (machines.empty()) return;
  const auto& own = machines.front();
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto* four = reinterpret_cast<sockaddr_in*>(&address);
  auto* six = reinterpret_cast<sockaddr_in6*>(&address);
  // ReplicaConfig::check has refused anything else.
  if (inet_pton(AF_INET, own.c_str(), &four->sin_addr) == 1)
    address.ss_family = AF_INET;
  else if (inet_pton(AF_INET6, own.c_str(), &six->sin6_addr) == 1)
    address.ss_family = AF_INET6;
  socket_ = ::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (socket_ < 0 || bind(socket_, any, size) != 0 || listen(socket_, SOMAXCONN) != 0 ||
      getsockname(socket_, any, &size) != 0) {
    const int error = errno;
    if (socket_ >= 0) close(socket_);
    config_error(
        fmt::format("replica.machines begins with {}, and the worker cannot listen there: {}; expected an "
                    "address of the worker's machine on the network of its ranks",
                    own, std::strerror(error)));
  }
  port_ = ntohs(address.ss_family == AF_INET6 ? six->sin6_port : four->sin_port);
}

RankListener::~RankListener() {
  if (socket_ >= 0) close(socket_);
}

namespace {

/// The command that starts a rank; on another machine without its last words.
std::vector<std::string> command_of(const RankSetup& setup, std::size_t machine) {
  if (machine == 0) return setup.program;
  const auto& replica = setup.experiment.replica;
  return replica.command_on(replica.machine_list().at(machine));
}

}  // namespace

std::string rank_name(const RankSetup& setup, std::int64_t rank) {
  const auto& replica = setup.experiment.replica;
  const auto machine = machine_of(rank, replica);
  const auto name = fmt::format("rank {} of {}", rank, setup.name);
  return machine == 0 ? name : fmt::format("{} on {}", name, replica.machine_list().at(machine));
}

std::string command_elsewhere(const RankSetup& setup, std::int64_t rank) {
  const auto machine = machine_of(rank, setup.experiment.replica);
  return machine == 0 ? "" : fmt::format("{}", fmt::join(command_of(setup, machine), " "));
}

Process start_rank(const RankSetup& setup, std::int64_t rank, int socket) {
  const struct Closed {
    int socket;
    ~Closed() { close(socket); }
  } closed{socket};
  const auto machine = machine_of(rank, setup.experiment.replica);
  auto command = command_of(setup, machine);
  const auto number = std::to_string(rank);
  if (machine == 0) {
    command.insert(command.end(), {"rank", "--folder", setup.folder.string(), "--rank", number, "--socket",
                                   std::to_string(socket)});
    return Process(
        {.name = rank_name(setup, rank), .command = std::move(command), .log = {}, .keep_fd = socket});
  }
  command.insert(command.end(), {"rank", "--folder", setup.name, "--rank", number});
  return Process({.name = rank_name(setup, rank),
                  .command = std::move(command),
                  .log = {},
                  .input = socket,
                  .output = socket});
}

}  // namespace isthmus::app
