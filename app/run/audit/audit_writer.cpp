#include "run/audit/audit_writer.h"

#include <algorithm>
#include <span>
#include <utility>

namespace isthmus::app {

AuditWriter::AuditWriter(const std::filesystem::path& folder, std::shared_ptr<outer_sync::RecordQueue> copies,
                         const std::function<void(const std::string&)>& say)
    : file_(folder / audit_file, say) {
  using outer_sync::protocol::RecordKind;
  file_.copy_to(
      [copies = std::move(copies)](std::string line) { copies->add(RecordKind::audit, std::move(line)); });
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

}  // namespace isthmus::app
