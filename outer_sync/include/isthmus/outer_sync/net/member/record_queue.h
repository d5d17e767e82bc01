#pragma once
// What a member writes for people (its metrics, its log), on its way to the coordinator's run folder.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync {

/// Lines that the coordinator does not have yet. While it is away the oldest give way to the newest: the
/// member's own files have them all. Safe from any thread.
class RecordQueue {
 public:
  static constexpr std::size_t default_max_bytes = 4 * 1024 * 1024;
  explicit RecordQueue(std::size_t max_bytes = default_max_bytes) : max_bytes_(max_bytes) {}

  /// A log line that is longer than `longest_record` is cut there; a metrics line is left out, since half of
  /// it would be none. Line breaks become spaces.
  void add(protocol::RecordKind kind, std::string line);
  /// The oldest ones from this number on, as many as fit into so many bytes, and one at least where there is
  /// one. They stay.
  [[nodiscard]] protocol::Records next(std::size_t max_bytes, std::uint64_t from = 0) const;
  /// Those before this number need not be kept.
  void taken(std::uint64_t next);
  /// Of the lines that wait.
  [[nodiscard]] std::size_t bytes() const;

 private:
  void drop_first();

  const std::size_t max_bytes_;
  mutable std::mutex mutex_;
  std::deque<protocol::Record> records_;
  std::uint64_t first_ = 0;  ///< number of the first of `records_`
  std::size_t bytes_ = 0;
};

}  // namespace isthmus::outer_sync
