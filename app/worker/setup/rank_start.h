#pragma once
// Starts the other ranks of a replica, here and on other machines.

#include <cstdint>
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

/// `socket`: the rank's end of its link, which is closed here.
[[nodiscard]] Process start_rank(const RankSetup& setup, std::int64_t rank, int socket);

}  // namespace isthmus::app
