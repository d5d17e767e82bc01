#pragma once
// Starts the other ranks of a replica, here and on other machines.

#include <cstdint>
#include <string>
#include <utility>

#include "run/process/process.h"
#include "worker/setup/ranks.h"

namespace isthmus::app {

/// A socket of rank 0, at which ranks of several machines meet: at the first one's address. Nothing without
/// replica.machines. Throws Error(config) if this machine cannot listen there.
class RankListener {
 public:
  explicit RankListener(const trainer::ReplicaConfig& replica);
  ~RankListener();
  RankListener(const RankListener&) = delete;
  RankListener& operator=(const RankListener&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_; }
  /// The socket, or -1; the caller closes it.
  [[nodiscard]] int release() { return std::exchange(socket_, -1); }

 private:
  int socket_ = -1;
  std::uint16_t port_ = 0;
};

/// "rank 3 of eu-1 on 10.0.0.2", without the machine if it is this one.
[[nodiscard]] std::string rank_name(const RankSetup& setup, std::int64_t rank);

/// The command that runs isthmus on the rank's machine; empty if that is this one.
[[nodiscard]] std::string command_elsewhere(const RankSetup& setup, std::int64_t rank);

/// `socket`: the rank's end of its link, which is closed here.
[[nodiscard]] Process start_rank(const RankSetup& setup, std::int64_t rank, int socket);

}  // namespace isthmus::app
