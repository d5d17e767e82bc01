#pragma once
// Writes audit.jsonl in a member's folder, and passes its lines to the coordinator. Safe from any thread. On
// a full disk lines are left out: their rounds cannot be audited, but training continues.

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/base/metrics.h"
#include "isthmus/outer_sync/net/member/io/record_queue.h"
#include "run/audit/audit_lines.h"
#include "run/audit/receipt_groups.h"

namespace isthmus::app {

/// As a ReceiptSink, it must outlive the member.
class AuditWriter final : public outer_sync::protocol::ReceiptSink {
 public:
  /// Throws Error(data) naming the file if it cannot be opened.
  AuditWriter(const std::filesystem::path& folder, std::shared_ptr<outer_sync::RecordQueue> copies,
              const std::function<void(const std::string&)>& say);
  ~AuditWriter() override;
  AuditWriter(const AuditWriter&) = delete;
  AuditWriter& operator=(const AuditWriter&) = delete;
  void write(const AuditLine& line) { file_.write(audit_json(line)); }
  void take(const outer_sync::protocol::Receipt& receipt) override { write_all(receipts_.add(receipt)); }
  void end_view() override { write_all(receipts_.rest()); }

 private:
  void write_all(const std::vector<AuditReceipts>& lines) {
    for (const auto& line : lines) write(line);
  }

  Metrics file_;
  ReceiptGroups receipts_;  ///< used by one codec thread
};

}  // namespace isthmus::app
