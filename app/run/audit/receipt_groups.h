#pragma once
// Puts an owner's receipts of a round together, so that audit.jsonl has one line for many chunks. Used by
// AuditWriter, on the codec thread.

#include <cstdint>
#include <map>
#include <vector>

#include "isthmus/outer_sync/protocol/receipts.h"
#include "run/audit/audit_lines.h"

namespace isthmus::app {

class ReceiptGroups {
 public:
  /// Lines about the same chunks, each for some of their members.
  using Lines = std::vector<AuditReceipts>;

  /// Returns the lines that are complete with this receipt: those of its round if it is the last of the
  /// owner's chunks, and those of an earlier round of the fragment that never became complete.
  [[nodiscard]] std::vector<AuditReceipts> add(const outer_sync::protocol::Receipt& receipt);
  /// Returns all others: no more receipts of their rounds come.
  [[nodiscard]] std::vector<AuditReceipts> rest();

 private:
  struct Round {
    std::uint64_t round = 0;
    std::uint32_t chunks = 0;
    std::vector<Lines> groups = {};
  };
  std::map<outer_sync::FragmentId, Round> open_;  ///< the latest round of each fragment
};

}  // namespace isthmus::app
