#pragma once
// `isthmus audit`: runs steps of members again and compares what they contributed (docs/how-to/audit.md).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace isthmus::app {

struct AuditRequest {
  std::filesystem::path run;           ///< the coordinator's run folder
  std::string member;                  ///< empty: all
  std::optional<std::uint64_t> round;  ///< of `fragment`, which must be in the interval
  std::uint32_t fragment = 0;
  double sample = 0.01;               ///< share of the rounds, without `round`
  std::optional<std::uint64_t> seed;  ///< of the choice; by default a new one each time
  std::filesystem::path log;          ///< folder of a round log; empty: one of another member
  std::vector<std::string> assignments = {};
  bool json = false;
  std::string build = {};                 ///< of this binary
  std::vector<std::string> program = {};  ///< as in WorkerRequest
};

/// Exit status: 0 if all contributions are as computed here, 5 if one is not (the member is named), 3 if some
/// of the chosen steps could not be run again. Throws Error(config) or Error(data).
[[nodiscard]] int run_audit(const AuditRequest& request);

}  // namespace isthmus::app
