#pragma once
// A queue between two threads that holds at most a fixed number of items and carries one stage's fault to the
// next.

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace isthmus::data {

template <class T>
class BoundedQueue {
 public:
  /// All memory is taken here.
  explicit BoundedQueue(std::size_t capacity) : items_(capacity) {}

  /// Waits for room. Does nothing if the queue is closed.
  void push(T item) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return closed_ || count_ < items_.size(); });
    if (closed_) return;
    items_[(first_ + count_++) % items_.size()] = std::move(item);
    lock.unlock();
    filled_.notify_one();
  }

  /// Waits for an item. Nothing if the queue is closed and empty; throws if it was closed with a fault.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return closed_ || count_ > 0; });
    if (count_ == 0) {
      if (fault_) std::rethrow_exception(fault_);
      return std::nullopt;
    }
    auto item = std::move(items_[first_]);
    first_ = (first_ + 1) % items_.size();
    --count_;
    lock.unlock();
    room_.notify_one();
    return item;
  }

  /// No more items come: what is there can still be taken, then pop() throws `fault`.
  void close(std::exception_ptr fault) { end(std::move(fault), false); }
  /// Drops what is there and wakes everybody.
  void stop() { end(nullptr, true); }

 private:
  void end(std::exception_ptr fault, bool drop) {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      fault_ = std::move(fault);
      if (drop) count_ = 0;
    }
    filled_.notify_all();
    room_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable filled_, room_;
  std::vector<T> items_;
  std::size_t first_ = 0, count_ = 0;
  bool closed_ = false;
  std::exception_ptr fault_;
};

}  // namespace isthmus::data
