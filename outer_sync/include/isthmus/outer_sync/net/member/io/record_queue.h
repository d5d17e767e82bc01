#pragma once
// Queue of a member's metrics, log lines and audit records on their way to the coordinator's run folder.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

#include "isthmus/outer_sync/protocol/messages/reports.h"

namespace isthmus::outer_sync {

/// Lines that the coordinator does not have yet. When the queue is full, the oldest are dropped; the member's
/// own files still have them. Safe from any thread.
class RecordQueue {
 public:
  static constexpr std::size_t default_max_bytes = 4 * 1024 * 1024;
  explicit RecordQueue(std::size_t max_bytes = default_max_bytes) : max_bytes_(max_bytes) {}

  /// Cuts a log line longer than `longest_record`, but drops other lines of that length, since half a JSON
  /// object is useless. Replaces line breaks by spaces.
  void add(protocol::RecordKind kind, std::string line);
  /// The oldest lines numbered `from` or higher, as many as fit into `max_bytes` but at least one, if any.
  /// They stay in the queue.
  [[nodiscard]] protocol::Records next(std::size_t max_bytes, std::uint64_t from = 0) const;
  /// The coordinator has all lines before number `next`: drops them.
  void taken(std::uint64_t next);
  /// Size of the queued lines.
  [[nodiscard]] std::size_t bytes() const;

 private:
  void drop_first();

  const std::size_t max_bytes_;
  mutable std::mutex mutex_;
  std::deque<protocol::Record> records_;
  std::uint64_t first_ = 0;  ///< number of the first line in `records_`
  std::size_t bytes_ = 0;
};

}  // namespace isthmus::outer_sync
