#include "log_writer.h"

#include <system_error>
#include <utility>

namespace isthmus::outer_sync::log {
namespace {

// Limits the memory used when the disk is slower than the run. A single record is accepted regardless of its
// size.
constexpr std::uint64_t max_queued_bytes = std::uint64_t{256} << 20;

void write_record(const File& out, const Digest& seed, const Record& record) {
  const auto head = to_bytes(record.head);
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(seed.bytes))).update(std::span<const std::byte>(head));
  out.write(head);
  for (const auto& part : record.body) {
    hasher.update(part.bytes);
    out.write(part.bytes);
  }
  const auto checksum = hasher.finish();
  out.write(std::as_bytes(std::span(checksum.bytes)));
}

}  // namespace

LogWriter::LogWriter(const Digest& seed) : seed_(seed), thread_([this] { work(); }) {}

LogWriter::~LogWriter() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LogWriter::rethrow() {
  if (failure_) std::rethrow_exception(failure_);
}

void LogWriter::push(Record record) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return failure_ || queue_.empty() || queued_bytes_ + record.head.length <= max_queued_bytes;
  });
  rethrow();
  queued_bytes_ += record.head.length;
  queue_.push_back(std::move(record));
  changed_.notify_all();
}

void LogWriter::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || (queue_.empty() && !busy_); });
  rethrow();
}

void LogWriter::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    busy_ = true;
    try {
      while (!queue_.empty()) {
        // The record stays queued, and so counted, until it is written.
        const auto& record = queue_.front();
        lock.unlock();
        write(record);
        lock.lock();
        queued_bytes_ -= queue_.front().head.length;
        queue_.pop_front();
        changed_.notify_all();
      }
      // Rounds that arrived meanwhile share one sync: a slow disk gets larger batches, not a longer queue.
      lock.unlock();
      sync();
      lock.lock();
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      failure_ = std::current_exception();
      queue_.clear();
      queued_bytes_ = 0;
    }
    busy_ = false;
    changed_.notify_all();
  }
}

void LogWriter::write(const Record& record) {
  if (record.head.kind == RecordKind::round) {
    unsynced_.insert(record.file);
    write_record(File(record.file, File::Mode::append), seed_, record);
    return;
  }
  replace_file(record.file, [&](const File& out) { write_record(out, seed_, record); });
  // The snapshot supersedes everything in the old file.
  unsynced_.erase(record.replaced);
  if (!record.replaced.empty() && record.replaced != record.file) remove_file(record.replaced);
}

void LogWriter::sync() {
  for (const auto& file : std::exchange(unsynced_, {})) File(file, File::Mode::append).sync();
}

}  // namespace isthmus::outer_sync::log
