#pragma once
// Facts that rank 0 and the other ranks of a replica must agree on before the first order.

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "isthmus/trainer/rank_group.h"
#include "worker/setup/ranks.h"

namespace isthmus::app {

/// The setup as it is sent to a rank, after the build.
struct Briefing {
  std::string yaml, name;
  std::int64_t vocab = 0, separator = -1;
  std::uint16_t port = 0;  ///< with several machines: where ranks meet
  template <class Archive>
  void serialize(Archive& ar) {
    ar(yaml, name, vocab, separator, port);
  }
};

[[nodiscard]] Briefing briefing_of(RankSetup setup, std::uint16_t port);

/// `listener`: rank 0's, if the replica has several machines; the others know only its port.
[[nodiscard]] trainer::RankGroupOptions group_options(const std::filesystem::path& folder, std::uint32_t rank,
                                                      const trainer::ReplicaConfig& replica,
                                                      trainer::Device device, std::uint16_t port,
                                                      int listener = -1);

/// Index in replica.machines.
[[nodiscard]] std::size_t machine_of(std::int64_t rank, const trainer::ReplicaConfig& replica);

/// Both ends are closed on exec, unless a child inherits its end explicitly.
[[nodiscard]] std::pair<int, int> socket_pair();

}  // namespace isthmus::app
