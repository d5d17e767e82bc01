#include "worker/setup/rank_briefing.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "isthmus/base/error.h"

namespace isthmus::app {

/// Values that rank 0 has chosen replace `auto`.
Briefing briefing_of(RankSetup setup, std::uint16_t port) {
  auto& experiment = setup.experiment;
  experiment.sites.clear();
  experiment.device.device = to_string(setup.device);
  experiment.inner.precision = to_string(setup.precision);
  experiment.trainer.init_from.clear();  // rank 0 gives them its parameters
  return {to_yaml(experiment), setup.name, setup.vocab, setup.separator, port};
}

std::size_t machine_of(std::int64_t rank, const trainer::ReplicaConfig& replica) {
  return static_cast<std::size_t>(rank / replica.ranks_per_machine());
}

trainer::RankGroupOptions group_options(const std::filesystem::path& folder, std::uint32_t rank,
                                        const trainer::ReplicaConfig& replica, trainer::Device device,
                                        std::uint16_t port, int listener) {
  const auto machines = replica.machine_list();
  std::optional<trainer::RankMeeting> meeting;
  if (!machines.empty()) meeting = {machines.front(), port, listener, machines.at(machine_of(rank, replica))};
  return {.store = folder / "ranks.store",
          .meeting = std::move(meeting),
          .rank = rank,
          .ranks = static_cast<std::uint32_t>(replica.ranks),
          .ranks_per_sequence = static_cast<std::uint32_t>(replica.ranks_per_sequence),
          .device = device};
}

std::pair<int, int> socket_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(ErrorKind::data, std::string("cannot make a pair of sockets: ") + std::strerror(errno));
  return {ends[0], ends[1]};
}

}  // namespace isthmus::app
