#pragma once
// Windows of one data set in the order in which a replica trains on them, which is decided run by run; read
// ahead by whole groups of blocks.

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

#include "bounded_queue.h"
#include "isthmus/base/samples.h"
#include "isthmus/data/corpus.h"
#include "isthmus/data/sampler.h"
#include "paged_memory.h"

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
  /// Until they are; whoever waits loads those meanwhile that no thread has begun. False if the pool was
  /// stopped; throws what went wrong with one of them.
  [[nodiscard]] bool wait(const WindowGroup& group);
  /// Ends all work and all waiting. Any thread.
  void stop();
  /// Says that it was.
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
  std::vector<std::jthread> threads_;  // after all that they use
  /// Before the threads are joined, also where not all of them could be started.
  struct Stop {
    ReaderPool& pool;
    ~Stop() { pool.stop(); }
  } stop_{*this};
};

/// The windows of one group, as its blocks stand in the data set.
class WindowGroup {
 public:
  /// Of `width` bytes a token, in `memory` of bytes() bytes. set outlives it.
  WindowGroup(const DataSet& set, const Shuffle& shuffle, std::uint64_t seq_len, std::uint32_t width,
              std::span<std::byte> memory);
  [[nodiscard]] static std::uint64_t bytes(const Shuffle& shuffle, std::uint64_t seq_len,
                                           std::uint32_t width);
  /// What it is to have, once it is loaded. Not while it is in use.
  void assign(const Sampler& sampler, const Sampler::Visit& visit);
  /// Whether it has that, or will.
  [[nodiscard]] bool has(const Sampler& sampler, const Sampler::Visit& visit) const;
  /// The seq_len + 1 tokens of the window that comes at `rank` of the group's order. Once it is loaded.
  [[nodiscard]] const std::byte* row(std::uint64_t rank) const {
    return tokens_.data() + places_[order_[rank]];
  }

  /// Whoever uses rows says so, and when that ends. Any thread.
  void use() { ++users_; }
  void release() { --users_; }
  [[nodiscard]] bool used() const { return users_ > 0; }

  // Its reader's.
  std::uint64_t visits = 0;  ///< that it was promised to
  bool used_up = true;       ///< the last one took all that it had left

 private:
  friend class ReaderPool;
  void load(std::uint64_t rank);

  const DataSet& set_;
  std::optional<Sampler> sampler_;  ///< of any track of its seed
  std::uint64_t seq_len_, block_bytes_;
  std::uint32_t width_;
  std::span<std::byte> tokens_;
  std::vector<std::uint64_t> places_;  ///< of windows, as blocks are laid out
  std::vector<std::uint32_t> order_;   ///< which of them comes at which rank
  std::uint64_t epoch_ = 0, group_ = 0;
  std::atomic<std::uint64_t> users_ = 0;
  // The pool's, under its lock.
  std::uint64_t missing_ = 0;
  std::optional<Fault> fault_;
};

/// One data set as a replica goes through it: runs of any tracks, in the order in which they are expected.
/// Used by one thread.
///
/// Rows stay in their groups' memory for as long as those are in use, and no group is loaded over meanwhile.
/// There are as many groups as rows of one track need. Short runs of several tracks may lie in more; waiting
/// for one to be let go could take for ever, since a batch may lie in any number of them and is let go only
/// when it is whole. So the rows beyond are copied: the groups that rows stay in are bounded, and those that
/// are read ahead are never among them.
///
/// A group that is used up is the first to be loaded over: its memory is still in the processor's caches.
class WindowReader {
 public:
  /// set outlives it. Of the sequences of one track at most `in_use` before the newest one that was taken are
  /// used later than the call that gave them; of any more, rows may be copied. So many `threads` are kept
  /// busy.
  WindowReader(const DataSet& set, const WindowOrder& order, std::uint64_t seq_len, std::uint32_t width,
               std::uint64_t in_use, std::uint64_t threads);
  WindowReader(const WindowReader&) = delete;
  WindowReader& operator=(const WindowReader&) = delete;
  [[nodiscard]] std::uint64_t epoch(std::uint64_t track, std::uint64_t sequence) const {
    return order_.of_track(track).epoch(sequence);
  }
  /// How many sequences beyond those that are taken next it must expect to read as far ahead as it can.
  [[nodiscard]] std::uint64_t ahead() const;
  /// These come behind those before, in the track's own count in this data set. What goes on where the last
  /// ones ended is one run with them, however many pieces it comes in.
  void expect(SampleRange run, ReaderPool& pool);
  struct Rows {
    std::size_t count;   ///< 0 if the pool was stopped
    WindowGroup* group;  ///< in whose memory they all lie; null if they were copied
  };
  /// The windows of the next sequences, which are expected: of as many as lie together, at most out.size()
  /// (>= 1), `out` gets where each lies: in memory of its own, or copied to `space`, row by row. Throws what
  /// the data set throws.
  [[nodiscard]] Rows rows(std::span<const std::byte*> out, ReaderPool& pool, std::byte* space);

 private:
  /// Sequences of one track that follow one another in one group; where there are none, in a run.
  struct Visit {
    std::uint64_t track, begin, end;
    std::uint64_t limit;           ///< how far it may go on
    WindowGroup* group = nullptr;  ///< once it is loaded for it
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
  std::uint64_t read_ahead_;  ///< groups
  std::optional<PagedMemory> memory_;
  std::vector<std::unique_ptr<WindowGroup>> groups_;  ///< none where windows are read one by one
  std::size_t oldest_ = 0;                            ///< of these
  std::deque<Visit> visits_;                          ///< of the group in use and of those to come
  std::size_t loaded_ = 0;                            ///< of these, how many have their groups
  // Of the first one, once it is taken.
  bool taken_ = false;
  Sampler sampler_;
  std::uint64_t rank_ = 0;  ///< of its next sequence in the group's order
  bool stays_ = false;      ///< rows are not copied
};

/// How the windows of a data set are mixed.
[[nodiscard]] Shuffle shuffle_of(const DataSet& set, std::uint64_t seq_len, std::uint64_t blocks);

}  // namespace isthmus::data
