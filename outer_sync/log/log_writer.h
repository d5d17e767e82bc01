#pragma once
// Writes a log's records on a thread of its own, in the order in which they are handed in.

#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "records.h"

namespace isthmus::outer_sync::log {

/// Bytes and whoever keeps them alive.
struct SharedPart {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

struct Record {
  std::filesystem::path file;
  RecordHead head;
  std::vector<SharedPart> body;
  /// A snapshot begins the file; this one goes, if it is another, when the snapshot is on disk. May be empty.
  std::filesystem::path replaced;
};

class LogWriter {
 public:
  /// `seed`: what the checksums begin with.
  explicit LogWriter(const Digest& seed);
  /// Writes what is queued.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  /// Blocks while too much is queued. Rethrows what went wrong before, after which nothing more is written.
  void push(Record record);
  /// Returns when everything is on disk, or rethrows what went wrong.
  void flush();

 private:
  void work();
  void write(const Record& record);
  void sync();
  void rethrow();

  const Digest seed_;
  std::set<std::filesystem::path> unsynced_;  ///< the writing thread's own
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Record> queue_;
  std::uint64_t queued_bytes_ = 0;
  bool busy_ = false, closing_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace isthmus::outer_sync::log
