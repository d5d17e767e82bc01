#pragma once
// `isthmus selftest`: checks what only the machine itself can show: several ranks against one, ZeRO-1 against
// plain training, and the bytes of the codecs, on GPUs too.

#include <cstdint>
#include <string>
#include <vector>

namespace isthmus::app {

struct SelftestRequest {
  std::string gpus;  ///< "all" or a number; empty: use the CPU
  bool json = false;
  std::int64_t ranks = 0;                 ///< 0: one for each GPU, or two on the CPU
  std::vector<std::string> program = {};  ///< as in WorkerRequest
};

/// Prints a table, with advice for each failure. Exit status: 0 all is well, 5 a value differs from the
/// expected one, 4 a rank was lost.
[[nodiscard]] int run_selftest(const SelftestRequest& request);

}  // namespace isthmus::app
