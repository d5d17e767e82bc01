#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "isthmus/outer_sync/net/member/io/record_queue.h"
#include "net/member/io/records.h"

namespace isthmus::outer_sync {

using namespace protocol;

namespace {

/// Approximate size in memory and on the wire.
std::size_t size_of(const Record& record) { return record.line.size() + 8; }

}  // namespace

void RecordQueue::add(RecordKind kind, std::string line) {
  if (kind != RecordKind::log && line.size() > longest_record) return;
  if (line.size() > longest_record) line.resize(longest_record);
  std::ranges::replace_if(
      line, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  const std::lock_guard lock(mutex_);
  records_.push_back({kind, std::move(line)});
  bytes_ += size_of(records_.back());
  while (bytes_ > max_bytes_ && records_.size() > 1) drop_first();
}

Records RecordQueue::next(std::size_t max_bytes, std::uint64_t from) const {
  const std::lock_guard lock(mutex_);
  Records out{std::max(first_, from), {}};
  std::size_t bytes = 0;
  for (std::size_t i = out.first - first_; i < records_.size(); ++i) {
    bytes += size_of(records_[i]);
    if (bytes > max_bytes && !out.records.empty()) break;
    out.records.push_back(records_[i]);
  }
  return out;
}

void RecordQueue::taken(std::uint64_t next) {
  const std::lock_guard lock(mutex_);
  while (first_ < next && !records_.empty()) drop_first();
}

std::size_t RecordQueue::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void RecordQueue::drop_first() {
  bytes_ -= size_of(records_.front());
  records_.pop_front();
  ++first_;
}

}  // namespace isthmus::outer_sync

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
