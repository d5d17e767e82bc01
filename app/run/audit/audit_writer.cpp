#include "run/audit/audit_writer.h"

#include <utility>

namespace isthmus::app {

AuditWriter::AuditWriter(const std::filesystem::path& folder, std::shared_ptr<outer_sync::RecordQueue> copies,
                         const std::function<void(const std::string&)>& say)
    : file_(folder / audit_file, say) {
  using outer_sync::protocol::RecordKind;
  file_.copy_to(
      [copies = std::move(copies)](std::string line) { copies->add(RecordKind::audit, std::move(line)); });
}

AuditWriter::~AuditWriter() { write_all(receipts_.rest()); }

}  // namespace isthmus::app
