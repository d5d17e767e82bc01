#include "run/audit/audit_writer.h"

#include <algorithm>
#include <span>
#include <utility>

namespace isthmus::app {

AuditWriter::AuditWriter(const std::filesystem::path& folder, std::shared_ptr<outer_sync::RecordQueue> copies,
                         const std::function<void(const std::string&)>& say)
    : file_(folder / audit_file, say), copies_(std::move(copies)) {
  if (file_.size() > 0) file_.append("\n");  // a killed process may have left half a line
}

/// In several lines if there are many contributions: longer lines are not gathered.
void AuditWriter::write_receipt(const outer_sync::protocol::Receipt& receipt) {
  constexpr std::size_t most = 24;
  auto part = receipt;
  for (std::size_t begin = 0; begin < receipt.contributions.size(); begin += most) {
    const auto all = std::span(receipt.contributions).subspan(begin);
    const auto some = all.first(std::min(most, all.size()));
    part.contributions.assign(some.begin(), some.end());
    write(part);
  }
}

void AuditWriter::write(const AuditLine& line) {
  auto text = audit_text(line);
  const std::lock_guard lock(mutex_);
  file_.append(text + '\n');
  if (copies_) copies_->add(outer_sync::protocol::RecordKind::audit, std::move(text));
}

}  // namespace isthmus::app
