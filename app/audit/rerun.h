#pragma once
// Runs a member's inner steps again between two of its checkpoints, on this machine, with the results of a
// round log. Used by `isthmus audit`, on one thread.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "audit/logged_exchange.h"
#include "audit/records.h"
#include "isthmus/base/error.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

struct RerunRequest {
  Experiment experiment = {};                    ///< of the member's machine
  outer_sync::protocol::Settings settings = {};  ///< with all changes up to the end
  std::string member;
  AuditInterval interval;
  std::filesystem::path begin, end;  ///< files of its checkpoints
  std::filesystem::path work;        ///< an empty folder
  std::vector<std::filesystem::path> logs =
      {};                            ///< folders of round logs; the first that begins early enough is read
  std::string build;                 ///< of this binary
  std::vector<std::string> program;  ///< command that starts it, for ranks
};

/// A checkpoint is not as its member has reported it, or its agreed state is not that of the round log.
class NotGenuine : public Error {
 public:
  explicit NotGenuine(const std::string& message) : Error(ErrorKind::divergence, message) {}
};

struct Rerun {
  std::uint64_t steps = 0;           ///< inner steps
  std::vector<AuditedRound> rounds;  ///< in the order in which they were applied
  OwnerAudit owners;                 ///< of the results of these rounds
  /// Parts of the last checkpoint with other bytes than computed here; `exact`: they are equal on any
  /// machine.
  std::vector<std::string> sections, exact;
  MachineTraits machine;      ///< of this machine
  std::filesystem::path log;  ///< that was read
  /// Why the steps could not be made to their end: NotGenuine's, or Error(data) if files are missing or do
  /// not fit each other.
  std::optional<Error> problem;
};

/// Throws Error if the member's replica cannot be set up here.
[[nodiscard]] Rerun rerun(const RerunRequest& request, const Receipts& receipts);

}  // namespace isthmus::app
