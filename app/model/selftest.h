#pragma once
// `isthmus selftest`: what no build can know of the machine that it will run on. Several ranks against one,
// ZeRO-1 against none, and the codecs' bytes, on a GPU too.

#include <cstdint>
#include <string>
#include <vector>

namespace isthmus::app {

struct SelftestRequest {
  std::string gpus;  ///< "all" or how many; empty: on the CPU
  bool json = false;
  std::int64_t ranks = 0;                 ///< 0: as many as GPUs, or two
  std::vector<std::string> program = {};  ///< as in WorkerRequest
};

/// Prints a table, and what to do where something has failed. Exit status: 0 all is well, 5 something gives
/// other values than it must, 4 a rank is lost.
[[nodiscard]] int run_selftest(const SelftestRequest& request);

}  // namespace isthmus::app
