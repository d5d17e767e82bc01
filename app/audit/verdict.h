#pragma once
// The findings of an audit: about one member between two of its checkpoints, and about owners of chunks.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "audit/rerun.h"
#include "isthmus/base/error.h"
#include "run/audit/audit_lines.h"

namespace isthmus::app {

struct AuditVerdict {
  std::string member;
  std::uint64_t begin = 0, end = 0;  ///< agreed steps of the checkpoints
  MachineTraits machine;             ///< that the member reported
  Rerun made = {};

  /// Whether this machine computes the same bits as the member's.
  [[nodiscard]] bool is_like_machine() const;
  /// Whether the contribution to this round was compared.
  [[nodiscard]] bool has(std::uint32_t fragment, std::uint64_t round) const;
  /// Whether a contribution is not what it should be: on a like machine any other byte, on others a distance
  /// above `max_distance`.
  [[nodiscard]] bool is_wrong(const AuditedRound& round) const;
  /// Maximum relative distance of a contribution from what an unlike machine computes.
  /// Machines round differently, and training enlarges the differences from step to step
  /// (docs/how-to/audit.md has measurements).
  static constexpr double max_distance = 0.7;
};

[[nodiscard]] std::string text_of(const AuditVerdict& verdict);
[[nodiscard]] nlohmann::ordered_json json_of(const AuditVerdict& verdict);
/// Exit status.
[[nodiscard]] int status_of(const AuditVerdict& verdict);

[[nodiscard]] std::string text_of(const OwnerVerdict& verdict);
[[nodiscard]] nlohmann::ordered_json json_of(const OwnerVerdict& verdict);
[[nodiscard]] int status_of(const OwnerVerdict& verdict);

}  // namespace isthmus::app
