#pragma once
// Writes a log's records on its own thread, in the order in which they are handed in.

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

/// Bytes and the object that keeps them alive.
struct SharedPart {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

struct Record {
  std::filesystem::path file;
  RecordHead head;
  std::vector<SharedPart> body;
  /// Only for a snapshot, which begins `file`: an older file, removed when the snapshot is on disk. May be
  /// empty or the same file.
  std::filesystem::path replaced;
};

class LogWriter {
 public:
  /// `seed`: prefix of all checksums.
  explicit LogWriter(const Digest& seed);
  /// Writes what is queued.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  /// Blocks while too much is queued. Rethrows an earlier failure, after which nothing more is written.
  void push(Record record);
  /// Returns when everything is on disk, or rethrows a failure.
  void flush();

 private:
  void work();
  void write(const Record& record);
  void sync();
  void rethrow();

  const Digest seed_;
  std::set<std::filesystem::path> unsynced_;  ///< used by the writing thread only
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Record> queue_;
  std::uint64_t queued_bytes_ = 0;
  bool busy_ = false, closing_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace isthmus::outer_sync::log
