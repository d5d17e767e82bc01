#pragma once
// Windows of one data set in the order in which a replica trains on them, read ahead by whole groups of
// blocks.

#include <atomic>
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
  std::vector<std::jthread> threads_;  // after all that they use
  /// Before the threads are joined, also where not all of them could be started.
  struct Stop {
    ReaderPool& pool;
    ~Stop() { pool.stop(); }
  } stop_{*this};
};

/// The windows of one group, as its blocks stand in the data set. Memory is taken by the constructor.
class WindowGroup {
 public:
  /// Of `width` bytes a token. set and sampler outlive it.
  WindowGroup(const DataSet& set, const Sampler& sampler, const Shuffle& shuffle, std::uint64_t seq_len,
              std::uint32_t width);
  /// Not while it is in use.
  void assign(const Sampler::Visit& visit);
  /// The seq_len + 1 tokens of the window that comes at `rank` of the group's order. Once it is loaded.
  [[nodiscard]] const std::byte* row(std::uint64_t rank) const {
    return tokens_.data() + places_[order_[rank]];
  }

  /// Whoever uses rows says so, and when that ends. Any thread.
  void use() { ++users_; }
  void release() { --users_; }

 private:
  friend class ReaderPool;
  [[nodiscard]] std::uint64_t block_bytes() const { return (block_ * seq_len_ + 1) * width_; }
  void load(std::uint64_t rank);

  const DataSet& set_;
  const Sampler& sampler_;
  std::uint64_t seq_len_, block_;
  std::uint32_t width_;
  std::vector<std::byte> tokens_;
  std::vector<std::uint64_t> places_;  ///< of windows, as blocks are laid out
  std::vector<std::uint32_t> order_;   ///< which of them comes at which rank
  std::uint64_t epoch_ = 0, group_ = 0;
  std::atomic<std::uint64_t> users_ = 0;
  // The pool's, under its lock.
  std::uint64_t missing_ = 0;
  std::optional<Fault> fault_;
};

/// One data set as a replica goes through it. Used by one thread.
class WindowReader {
 public:
  /// set outlives it. `shuffle.block` is 0 where windows are read one by one. At most `in_use` of the
  /// sequences before the newest one that was taken are used later than the call that gave them.
  WindowReader(const DataSet& set, const Sampler& sampler, const Shuffle& shuffle, std::uint64_t seq_len,
               std::uint32_t width, std::uint64_t in_use, std::uint64_t replicas);
  WindowReader(const WindowReader&) = delete;
  WindowReader& operator=(const WindowReader&) = delete;
  [[nodiscard]] std::uint64_t epoch(std::uint64_t sequence) const { return sampler_.epoch(sequence); }
  struct Row {
    const std::byte* tokens;  ///< null if the pool was stopped
    WindowGroup* group;       ///< whose memory that is, if it is one's
  };
  /// The window of `sequence`, in the replica's own count in this data set: in memory of its own, or copied
  /// to `space`. Sequences come in ascending order. Throws what the data set throws.
  [[nodiscard]] Row row(std::uint64_t sequence, ReaderPool& pool, std::byte* space);

 private:
  [[nodiscard]] bool take(std::uint64_t sequence, ReaderPool& pool);
  [[nodiscard]] WindowGroup& group(std::uint64_t index) { return *groups_[index % groups_.size()]; }

  const DataSet& set_;
  const Sampler sampler_;
  std::uint64_t seq_len_;
  std::uint32_t width_;
  std::vector<std::unique_ptr<WindowGroup>>
      groups_;                                    ///< used by turns; none where windows are read one by one
  std::deque<Sampler::Visit> visits_;             ///< of the group in use and of those read ahead
  std::uint64_t next_ = 0;                        ///< the first sequence after those
  std::uint64_t index_ = 0;                       ///< of the group in use, ever growing
  std::uint64_t begin_ = 0, end_ = 0, rank_ = 0;  ///< its sequences, and the first one's rank
};

/// How the windows of a data set are mixed.
[[nodiscard]] Shuffle shuffle_of(const DataSet& set, std::uint64_t seq_len, std::uint64_t blocks);

}  // namespace isthmus::data
