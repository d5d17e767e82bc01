#pragma once
// A queue between two threads with a fixed capacity, which passes a stage's error on to the next stage.

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/error.h"

namespace isthmus::data {

/// An error in a stage, by value: threads share no exception object.
struct Fault {
  ErrorKind kind;
  std::string message;
};

template <class T>
class BoundedQueue {
 public:
  /// Allocates all memory.
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

  /// Waits for an item. Returns nullopt once stopped; throws the fault as an Error once closed and empty.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return closed_ || count_ > 0; });
    if (count_ == 0) {
      if (fault_) throw Error(fault_->kind, fault_->message);
      return std::nullopt;
    }
    auto item = std::move(items_[first_]);
    first_ = (first_ + 1) % items_.size();
    --count_;
    lock.unlock();
    room_.notify_one();
    return item;
  }

  /// No more items will be pushed: pop() returns those in the queue, then throws.
  void close(Fault fault) { end(std::move(fault), false); }
  /// Drops all items and wakes all waiting threads.
  void stop() { end(std::nullopt, true); }

 private:
  void end(std::optional<Fault> fault, bool drop) {
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
  std::optional<Fault> fault_;
};

}  // namespace isthmus::data
