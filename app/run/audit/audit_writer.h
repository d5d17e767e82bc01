#pragma once
// Writes audit.jsonl in a member's folder, and passes its lines to the coordinator. Safe from any thread. A
// line that cannot be written (full disk) is left out: rounds without lines cannot be audited, but training
// continues.

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "isthmus/base/append_file.h"
#include "isthmus/outer_sync/net/member/io/record_queue.h"
#include "run/audit/audit_lines.h"

namespace isthmus::app {

class AuditWriter {
 public:
  /// Throws Error(data) naming the file if it cannot be opened. `copies` may be null.
  AuditWriter(const std::filesystem::path& folder, std::shared_ptr<outer_sync::RecordQueue> copies,
              const std::function<void(const std::string&)>& say);
  void write(const AuditLine& line);
  /// For MemberOptions; this must outlive the member.
  [[nodiscard]] outer_sync::protocol::TakeReceipt taking_receipts() {
    return [this](const outer_sync::protocol::Receipt& receipt) { write_receipt(receipt); };
  }

 private:
  void write_receipt(const outer_sync::protocol::Receipt& receipt);

  std::mutex mutex_;
  AppendFile file_;
  const std::shared_ptr<outer_sync::RecordQueue> copies_;
};

}  // namespace isthmus::app
