#pragma once
// Windows of one data set in the order in which a replica trains on them, read ahead by whole groups of
// blocks.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "bounded_queue.h"
#include "isthmus/data/corpus.h"
#include "isthmus/data/sampler.h"

namespace isthmus::data {

class WindowGroup;

/// Threads that read, unpack and check blocks. Groups that it has work of outlive it.
class ReaderPool {
 public:
  explicit ReaderPool(std::size_t threads);
  ~ReaderPool() { stop(); }
  ReaderPool(const ReaderPool&) = delete;
  ReaderPool& operator=(const ReaderPool&) = delete;

  /// Has all blocks of a group loaded.
  void load(WindowGroup& group);
  /// Waits until they are. False if the pool was stopped; throws what went wrong with one of them.
  [[nodiscard]] bool wait(const WindowGroup& group);
  /// Ends all work and all waiting. Any thread.
  void stop();

 private:
  struct Task {
    WindowGroup* group;
    std::uint64_t rank;
  };
  void work();

  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Task> tasks_;
  bool stopped_ = false;
  std::vector<std::jthread> threads_;  // last: they use the rest
};

/// The windows of one group, as its blocks stand in the data set. Memory is taken by the constructor.
class WindowGroup {
 public:
  /// Of `width` bytes a token. set and sampler outlive it.
  WindowGroup(const DataSet& set, const Sampler& sampler, const Shuffle& shuffle, std::uint64_t seq_len,
              std::uint32_t width);
  void assign(std::uint64_t epoch, std::uint64_t group);
  [[nodiscard]] bool holds(const Sampler::Place& place) const {
    return assigned_ && epoch_ == place.epoch && group_ == place.group;
  }
  /// The seq_len + 1 tokens of a window that it holds.
  [[nodiscard]] const std::byte* row(std::uint64_t in_group) const;

 private:
  friend class ReaderPool;
  [[nodiscard]] std::uint64_t block_bytes() const { return (block_ * seq_len_ + 1) * width_; }
  void load(std::uint64_t rank);

  const DataSet& set_;
  const Sampler& sampler_;
  std::uint64_t seq_len_, block_;
  std::uint32_t width_;
  std::vector<std::byte> tokens_;
  std::uint64_t epoch_ = 0, group_ = 0;
  bool assigned_ = false;
  // The pool's, under its lock.
  std::uint64_t missing_ = 0;
  std::optional<Fault> fault_;
};

/// One data set as a replica goes through it. Used by one thread.
class WindowReader {
 public:
  /// set and pool outlive it. `shuffle.block` is 0 where windows are read one by one.
  WindowReader(const DataSet& set, const Sampler& sampler, const Shuffle& shuffle, std::uint64_t seq_len,
               std::uint32_t width);
  WindowReader(const WindowReader&) = delete;
  WindowReader& operator=(const WindowReader&) = delete;
  [[nodiscard]] std::uint64_t epoch(std::uint64_t sequence) const { return sampler_.at(sequence).epoch; }
  /// Copies the window of `sequence`, in the replica's own count in this data set, to `row`; sequences come
  /// in ascending order. False if the pool was stopped. Throws what the data set throws.
  [[nodiscard]] bool read(std::uint64_t sequence, ReaderPool& pool, std::byte* row);

 private:
  [[nodiscard]] bool take(const Sampler::Place& place, std::uint64_t sequence, ReaderPool& pool);

  const DataSet& set_;
  const Sampler sampler_;
  std::uint64_t seq_len_;
  std::uint32_t width_;
  std::vector<std::unique_ptr<WindowGroup>> groups_;  ///< in use, and the next one; or none
};

/// How the windows of a data set are mixed.
[[nodiscard]] Shuffle shuffle_of(const DataSet& set, std::uint64_t seq_len, std::uint64_t blocks);

}  // namespace isthmus::data
