#include "net/member/record_sender.h"

#include <cstddef>
#include <cstdint>

namespace isthmus::outer_sync::transport {
namespace {

/// 5 ms at 50 Mbit/s.
constexpr std::size_t max_batch_bytes = 32 * 1024;
constexpr std::size_t enough = 16 * 1024;

}  // namespace

void RecordSender::add(const std::string& text) const {
  if (records_) records_->add(protocol::RecordKind::log, text);
}

void RecordSender::send() {
  if (!records_ || under_way_ || !control_.up()) return;
  const auto next = records_->next(wanted_ ? max_batch_bytes : 1);
  if (next.records.empty()) return;
  under_way_ = true;
  control_.send(next);
}

void RecordSender::send_if_enough() {
  if (records_ && records_->bytes() >= enough) send();
}

void RecordSender::send_all() {
  if (!records_ || !control_.up()) return;
  std::uint64_t from = 0;
  for (;;) {
    const auto next = records_->next(max_batch_bytes, from);
    if (next.records.empty()) return;
    from = next.first + next.records.size();
    control_.send(next);
  }
}

void RecordSender::on_taken(const protocol::RecordsTaken& taken) {
  under_way_ = false;
  wanted_ = true;
  if (records_) records_->taken(taken.next);
  if (taken.next == protocol::no_records_wanted) records_ = nullptr;
}

}  // namespace isthmus::outer_sync::transport
