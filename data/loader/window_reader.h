#pragma once
// Windows of one data set in the order in which a replica trains on them, which the caller decides run by
// run. Whole groups of blocks are read ahead.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "isthmus/base/samples.h"
#include "isthmus/data/corpus.h"
#include "isthmus/data/sampler.h"
#include "loader/paged_memory.h"
#include "queues/bounded_queue.h"

namespace isthmus::data {

class WindowGroup;

/// Threads that read, decompress and check blocks. Groups that it loads must outlive it.
class ReaderPool {
 public:
  explicit ReaderPool(std::size_t threads);
  ReaderPool(const ReaderPool&) = delete;
  ReaderPool& operator=(const ReaderPool&) = delete;

  /// Queues all blocks of a group to be loaded.
  void load(WindowGroup& group);
  /// Waits until they are loaded; the caller meanwhile loads blocks that no thread has begun. Returns false
  /// if the pool was stopped; throws a block's error.
  [[nodiscard]] bool wait(const WindowGroup& group);
  /// Ends all work and all waiting. Any thread.
  void stop();
  /// Requested by stop().
  [[nodiscard]] std::stop_token stop_token() const { return stopping_.get_token(); }

 private:
  struct Task {
    WindowGroup* group;
    std::uint64_t rank;
  };
  void work();
  void do_first(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Task> tasks_;
  bool stopped_ = false;
  std::stop_source stopping_;
  std::vector<std::jthread> threads_;  // after everything that they use
  /// Runs before the threads are joined, also if not all of them could be started.
  struct Stop {
    ReaderPool& pool;
    ~Stop() { pool.stop(); }
  } stop_{*this};
};

/// The windows of one group in memory, block by block.
class WindowGroup {
 public:
  /// Tokens have `width` bytes each, in `memory` of bytes() bytes. `set` must outlive it.
  WindowGroup(const DataSet& set, const Shuffle& shuffle, std::uint64_t seq_len, std::uint32_t width,
              std::span<std::byte> memory);
  [[nodiscard]] static std::uint64_t bytes(const Shuffle& shuffle, std::uint64_t seq_len,
                                           std::uint32_t width);
  /// Sets which group it will hold once it is loaded. Not while it is in use.
  void assign(const Sampler& sampler, const Sampler::Visit& visit);
  /// Whether it holds that group, or will.
  [[nodiscard]] bool has(const Sampler& sampler, const Sampler::Visit& visit) const;
  /// The seq_len + 1 tokens of the window at `rank` in the group's order. Only once it is loaded.
  [[nodiscard]] const std::byte* row(std::uint64_t rank) const {
    return tokens_.data() + places_[order_[rank]];
  }

  /// Code that uses rows calls these before and after. Any thread.
  void use() { ++users_; }
  void release() { --users_; }
  [[nodiscard]] bool used() const { return users_ > 0; }

  // Used by its WindowReader.
  std::uint64_t visits = 0;  ///< visits that use it or will
  bool used_up = true;       ///< whether the last visit took all windows that were left

 private:
  friend class ReaderPool;
  void load(std::uint64_t rank);

  const DataSet& set_;
  std::optional<Sampler> sampler_;  ///< of any track with this seed
  std::uint64_t seq_len_, block_bytes_;
  std::uint32_t width_;
  std::span<std::byte> tokens_;
  std::vector<std::uint64_t> places_;  ///< offsets of windows, in the order of blocks
  std::vector<std::uint32_t> order_;   ///< which window is at each rank
  std::uint64_t epoch_ = 0, group_ = 0;
  std::atomic<std::uint64_t> users_ = 0;
  // Guarded by the pool's lock.
  std::uint64_t missing_ = 0;
  std::optional<Fault> fault_;
};

/// The windows of one data set for one replica: runs of any tracks, in the order in which the caller expects
/// them. Used by one thread.
///
/// Rows stay in their groups' memory while these are in use, and no group in use is overwritten. There are
/// enough groups for the rows of one track. Short runs of several tracks may need more, but waiting for a
/// free group could deadlock, since a batch may span any number of groups and releases them only when it is
/// complete. So further rows are copied: the number of groups with rows in use is bounded, and groups that
/// are read ahead are never among them.
///
/// A used-up group is overwritten first: its memory is still in the processor's caches.
class WindowReader {
 public:
  /// `set` must outlive it. At most `in_use` sequences of one track before the newest one may still be in use
  /// after the call that returned them; rows beyond that may be copied. Reads ahead enough for this many
  /// `threads`.
  WindowReader(const DataSet& set, const WindowOrder& order, std::uint64_t seq_len, std::uint32_t width,
               std::uint64_t in_use, std::uint64_t threads);
  WindowReader(const WindowReader&) = delete;
  WindowReader& operator=(const WindowReader&) = delete;
  [[nodiscard]] std::uint64_t epoch(std::uint64_t track, std::uint64_t sequence) const {
    return order_.of_track(track).epoch(sequence);
  }
  /// How many sequences beyond the next ones the caller must expect, for it to read as far ahead as it can.
  [[nodiscard]] std::uint64_t ahead() const;
  /// Appends sequences, in the track's own count in this data set. Sequences that continue where the last
  /// ones ended form one run with them, in any number of pieces.
  void expect(SampleRange run, ReaderPool& pool);
  struct Rows {
    std::size_t count;   ///< 0 if the pool was stopped
    WindowGroup* group;  ///< holds all rows; null if they were copied
  };
  /// The windows of the next expected sequences, as many as are in one group but at most out.size() (>= 1):
  /// sets `out` to their addresses, in the group's memory or copied to `space`, row by row. Throws what the
  /// data set throws.
  [[nodiscard]] Rows rows(std::span<const std::byte*> out, ReaderPool& pool, std::byte* space);

 private:
  /// Consecutive sequences of one track in one group, or without groups in one run.
  struct Visit {
    std::uint64_t track, begin, end;
    std::uint64_t limit;           ///< how far the visit can be extended
    WindowGroup* group = nullptr;  ///< set once it is loaded for this visit
  };
  [[nodiscard]] bool take(ReaderPool& pool);
  void load_ahead(ReaderPool& pool);
  [[nodiscard]] WindowGroup* find_group(const Sampler& sampler, const Sampler::Visit& visit,
                                        ReaderPool& pool);
  [[nodiscard]] WindowGroup* free_group();
  [[nodiscard]] bool may_stay(const WindowGroup& group) const;

  const DataSet& set_;
  const WindowOrder order_;
  std::uint64_t seq_len_;
  std::uint32_t width_;
  std::uint64_t read_ahead_;  ///< in groups
  std::optional<PagedMemory> memory_;
  std::vector<std::unique_ptr<WindowGroup>> groups_;  ///< empty if windows are read one by one
  std::size_t oldest_ = 0;                            ///< index in groups_ at which free_group() starts
  std::deque<Visit> visits_;                          ///< the visit in use, and those after it
  std::size_t loaded_ = 0;                            ///< number of visits that have their groups
  // For the first visit, once it is taken:
  bool taken_ = false;
  Sampler sampler_;
  std::uint64_t rank_ = 0;  ///< position of its next sequence in the group's order
  bool stays_ = false;      ///< whether rows stay in the group's memory
};

/// How the windows of a data set are shuffled.
[[nodiscard]] Shuffle shuffle_of(const DataSet& set, std::uint64_t seq_len, std::uint64_t blocks);

}  // namespace isthmus::data
