#pragma once
// The audit records of a run (audit.jsonl of all members), put in order: the journal of the member under
// audit, and the receipts of all owners. Reading trusts nothing: lines of another form are skipped and
// counted.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "run/audit/audit_lines.h"

namespace isthmus::app {

using AuditEvent = std::variant<AuditTrained, AuditApplied, AuditSpeeds>;

/// A member's doings between two of its checkpoints, without a gap.
struct AuditInterval {
  std::string member;
  AuditCheckpoint begin, end;
  std::vector<AuditEvent> events = {};
  std::optional<AuditSpeeds> speeds = {};  ///< in force at the beginning
  MachineTraits machine = {};
  /// Rounds applied in it.
  [[nodiscard]] std::uint64_t rounds() const;
};

/// Takes a trainer's lines in their order, and cuts them at its checkpoints.
class Journal {
 public:
  Journal();
  ~Journal();
  Journal(Journal&&) noexcept;
  Journal& operator=(Journal&&) noexcept;
  void add(const AuditLine& line);
  /// Intervals between successive checkpoints with reported digests, in which the member did not copy the
  /// state of others.
  [[nodiscard]] const std::vector<AuditInterval>& intervals() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// One interval instead of several that follow each other.
[[nodiscard]] AuditInterval joined(std::span<const AuditInterval> intervals);

/// Passes on the lines of a file. Returns how many were of another form. Throws Error(data) naming the file
/// if it cannot be read.
std::uint64_t read_audit_file(const std::filesystem::path& file, const std::function<void(AuditLine)>& take);

/// Receipts of owners, by chunk and round.
class Receipts {
 public:
  void add(const std::string& owner, outer_sync::protocol::Receipt receipt);

  struct Found {
    std::string owner;
    outer_sync::protocol::Receipt receipt;
  };
  /// Receipts for the contributions that this result was made of. There is one, unless a round was repeated
  /// with the same result, or a member claims to have received what it has not.
  [[nodiscard]] std::vector<const Found*> find(outer_sync::ChunkId chunk, std::uint64_t round,
                                               const Digest& result) const;

 private:
  std::map<std::pair<std::uint64_t, outer_sync::ChunkId>, std::vector<Found>> by_place_;
};

}  // namespace isthmus::app
