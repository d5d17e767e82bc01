#pragma once
// A bounded queue of ids between the thread that writes a stream to its store and the thread that trains on
// it.

#include <algorithm>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <utility>

#include "isthmus/base/archive.h"
#include "isthmus/base/error.h"
#include "queues/bounded_queue.h"

namespace isthmus::data {

/// One thread pushes, one reads. Ids have `width` bytes each and consecutive numbers.
class IdRing {
 public:
  /// `first` is the number of the first id that is pushed.
  IdRing(std::uint64_t capacity, std::uint32_t width, std::uint64_t first)
      : bytes_(capacity * width), capacity_(capacity), width_(width), first_(first), end_(first) {}

  /// Waits for room. Returns false once stopped.
  bool push(std::span<const std::byte> ids) {
    while (!ids.empty()) {
      std::unique_lock lock(mutex_);
      room_.wait(lock, [&] { return stopped_ || end_ - first_ < capacity_; });
      if (stopped_) return false;
      const auto at = end_ % capacity_;
      const auto count =
          std::min({capacity_ - (end_ - first_), capacity_ - at, std::uint64_t{ids.size() / width_}});
      std::memcpy(bytes_.data() + at * width_, ids.data(), count * width_);
      ids = ids.subspan(count * width_);
      end_ += count;
      lock.unlock();
      filled_.notify_one();
    }
    return true;
  }
  /// No more ids will be pushed. If there is a fault, read() throws it after the last id.
  void close(std::optional<Fault> fault = std::nullopt) {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    fault_ = std::move(fault);
    filled_.notify_all();
  }
  /// Wakes the thread that pushes.
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    room_.notify_all();
  }

  /// Copies the ids [begin, begin + count), at most the capacity, and drops all before `begin`. Returns the
  /// number of ids copied: fewer if the ids end before or a stop was requested. Calls `waited` at least once
  /// a second with the time waited since the last call.
  std::uint64_t read(std::uint64_t begin, std::uint64_t count, std::byte* out, const std::stop_token& stop,
                     const std::function<void(std::chrono::duration<double>)>& waited) {
    assert(count <= capacity_);
    std::unique_lock lock(mutex_);
    const auto have = [&] {
      if (first_ < begin && first_ < end_) {
        first_ = std::min(begin, end_);
        room_.notify_one();
      }
      return end_ >= begin + count;
    };
    while (!have() && !closed_ && !stop.stop_requested()) {
      const auto since = std::chrono::steady_clock::now();
      filled_.wait_for(lock, stop, std::chrono::seconds(1), [&] { return have() || closed_; });
      lock.unlock();
      waited(std::chrono::steady_clock::now() - since);
      lock.lock();
    }
    if (!have() && closed_ && fault_) throw Error(fault_->kind, fault_->message);
    const auto there = std::min(count, end_ - std::min(end_, begin));
    for (std::uint64_t done = 0; done < there;) {
      const auto at = (begin + done) % capacity_;
      const auto part = std::min(there - done, capacity_ - at);
      std::memcpy(out + done * width_, bytes_.data() + at * width_, part * width_);
      done += part;
    }
    return there;
  }

 private:
  std::mutex mutex_;
  std::condition_variable room_;
  std::condition_variable_any filled_;
  Bytes bytes_;
  std::uint64_t capacity_;
  std::uint32_t width_;
  std::uint64_t first_, end_;  ///< numbers of the ids that it holds
  bool closed_ = false, stopped_ = false;
  std::optional<Fault> fault_;
};

}  // namespace isthmus::data
