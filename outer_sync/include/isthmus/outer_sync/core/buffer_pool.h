#pragma once
// Pools of reusable chunk buffers: in steady state the outer loop allocates no memory. A buffer returns to
// its pool when its last user releases it, on any thread.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "isthmus/base/aligned.h"

namespace isthmus::outer_sync {

/// A handle: copies share one pool. Buffers may outlive all handles.
template <class T>
class Pool {
 public:
  using Buffer = AlignedVector<T>;

  /// Every buffer has room for `largest` elements, so any buffer can serve any request. At most `max_idle`
  /// unused buffers are kept.
  Pool(std::size_t largest, std::size_t max_idle) : shelf_(std::make_shared<Shelf>(largest, max_idle)) {}

  /// Returns a buffer of `size` elements with unspecified values. Safe from any thread.
  [[nodiscard]] std::shared_ptr<Buffer> take(std::size_t size) const {
    auto buffer = shelf_->take();
    buffer->resize(size);
    return {buffer.release(), [shelf = shelf_](Buffer* used) { shelf->put(std::unique_ptr<Buffer>(used)); }};
  }
  /// Returns the memory of unused buffers to the system.
  void trim() const { shelf_->trim(); }

  [[nodiscard]] std::size_t made() const { return shelf_->made(); }  ///< buffers allocated so far
  [[nodiscard]] std::size_t idle() const { return shelf_->idle(); }
  [[nodiscard]] std::size_t in_use() const { return shelf_->in_use(); }

 private:
  class Shelf {
   public:
    Shelf(std::size_t largest, std::size_t max_idle) : largest_(largest), max_idle_(max_idle) {}

    [[nodiscard]] std::unique_ptr<Buffer> take() {
      {
        const std::lock_guard lock(mutex_);
        ++in_use_;
        if (!idle_.empty()) {
          auto buffer = std::move(idle_.back());
          idle_.pop_back();
          return buffer;
        }
        ++made_;
        // Reserve the entry now, because put() must not fail.
        if (idle_.capacity() < std::min(in_use_, max_idle_)) idle_.reserve(2 * in_use_);
      }
      auto buffer = std::make_unique<Buffer>();
      buffer->reserve(largest_);
      return buffer;
    }

    void put(std::unique_ptr<Buffer> buffer) noexcept {
      const std::lock_guard lock(mutex_);
      --in_use_;
      // A buffer that has grown beyond `largest_` is freed.
      if (idle_.size() < std::min(max_idle_, idle_.capacity()) && buffer->capacity() <= largest_)
        idle_.push_back(std::move(buffer));
    }

    void trim() {
      const std::lock_guard lock(mutex_);
      idle_.clear();
    }
    [[nodiscard]] std::size_t made() const {
      const std::lock_guard lock(mutex_);
      return made_;
    }
    [[nodiscard]] std::size_t idle() const {
      const std::lock_guard lock(mutex_);
      return idle_.size();
    }
    [[nodiscard]] std::size_t in_use() const {
      const std::lock_guard lock(mutex_);
      return in_use_;
    }

   private:
    mutable std::mutex mutex_;
    const std::size_t largest_, max_idle_;
    std::vector<std::unique_ptr<Buffer>> idle_;  ///< most recently used last: it may still be in a cache
    std::size_t in_use_ = 0, made_ = 0;
  };

  std::shared_ptr<Shelf> shelf_;
};

using BufferPool = Pool<std::byte>;  ///< for encoded chunks

}  // namespace isthmus::outer_sync
