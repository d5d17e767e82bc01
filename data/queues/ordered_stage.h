#pragma once
// A pipeline stage in which several threads work and results come out in the order of the inputs. Its memory
// is bounded: one item for each thread, and `waiting` more. Items are swapped in and out, so that their
// memory is reused.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "isthmus/base/error.h"
#include "queues/bounded_queue.h"

namespace isthmus::data {

/// One thread pushes, one pops. pop() throws an Error of the work when that result is due.
template <class In, class Out>
class OrderedStage {
 public:
  using Work = std::function<void(In&, Out&)>;
  /// Calls `make_work` here, once for each thread; the function it returns holds that thread's state.
  OrderedStage(std::size_t threads, std::size_t waiting, const std::function<Work()>& make_work)
      : slots_(threads + waiting) {
    for (std::size_t i = 0; i < threads; ++i)
      threads_.emplace_back([this, work = make_work()] { run(work); });
  }
  ~OrderedStage() { stop(); }
  OrderedStage(const OrderedStage&) = delete;
  OrderedStage& operator=(const OrderedStage&) = delete;

  /// Waits for room, and swaps an earlier item into `item`, so that its memory is reused. Returns false once
  /// stopped.
  bool push(In& item) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return stopped_ || pushed_ - popped_ < slots_.size(); });
    if (stopped_) return false;
    auto& slot = slots_[pushed_ % slots_.size()];
    std::swap(slot.in, item);
    slot.done = false;
    slot.fault.reset();
    ++pushed_;
    lock.unlock();
    work_.notify_one();
    return true;
  }
  /// No more items will be pushed. If there is a fault, pop() throws it after the last result.
  void close(std::optional<Fault> fault = std::nullopt) {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    fault_ = std::move(fault);
    work_.notify_all();
    ready_.notify_one();
  }
  /// Waits for the next result. Returns false at the end.
  bool pop(Out& result) {
    std::unique_lock lock(mutex_);
    auto& slot = slots_[popped_ % slots_.size()];
    ready_.wait(lock, [&] { return stopped_ || (popped_ < pushed_ ? slot.done : closed_); });
    const bool ended = stopped_ || popped_ == pushed_;
    const auto& fault = ended ? fault_ : slot.fault;
    if (fault) throw Error(fault->kind, fault->message);
    if (ended) return false;
    std::swap(slot.out, result);
    ++popped_;
    lock.unlock();
    room_.notify_one();
    return true;
  }
  /// Wakes all waiting threads, and returns when no thread works any more.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      room_.notify_all();
      work_.notify_all();
      ready_.notify_all();
    }
    for (auto& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  struct Slot {
    In in;
    Out out;
    std::optional<Fault> fault;
    bool done = false;
  };

  void run(const Work& work) {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [&] { return stopped_ || taken_ < pushed_ || closed_; });
      if (stopped_ || taken_ == pushed_) return;
      auto& slot = slots_[taken_++ % slots_.size()];
      lock.unlock();
      std::optional<Fault> fault;
      try {
        work(slot.in, slot.out);
      } catch (const Error& error) {
        fault = Fault{error.kind(), error.what()};
      } catch (const std::exception& error) {
        fault = Fault{ErrorKind::data, error.what()};
      }
      lock.lock();
      slot.fault = std::move(fault);
      slot.done = true;
      if (&slot == &slots_[popped_ % slots_.size()]) ready_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable room_, work_, ready_;  ///< signal the pushing thread, the workers, the popping
                                                 ///< thread
  std::vector<Slot> slots_;
  std::uint64_t pushed_ = 0, taken_ = 0, popped_ = 0;
  bool closed_ = false, stopped_ = false;
  std::optional<Fault> fault_;
  std::vector<std::thread> threads_;
};

}  // namespace isthmus::data
