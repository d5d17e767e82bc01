#include "queues/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "data_support.h"

namespace isthmus::data {
namespace {

TEST(BoundedQueue, KeepsTheOrderAcrossThreads) {
  BoundedQueue<int> queue(3);
  std::thread producer([&] {
    for (int i = 0; i < 1000; ++i) queue.push(i);
  });
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(queue.pop(), i);
  producer.join();
}

TEST(BoundedQueue, HoldsNoMoreThanItsCapacity) {
  BoundedQueue<int> queue(2);
  std::atomic<int> pushed = 0;
  std::thread producer([&] {
    for (int i = 0; i < 5; ++i) {
      queue.push(i);
      ++pushed;
    }
  });
  while (pushed < 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(pushed, 2);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(queue.pop(), i);
  producer.join();
}

TEST(BoundedQueue, AFaultComesAfterTheItemsBeforeItAndStays) {
  BoundedQueue<int> queue(2);
  queue.push(1);
  queue.close({ErrorKind::network, "broken"});
  EXPECT_EQ(queue.pop(), 1);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(error_of(ErrorKind::network, [&] { queue.pop(); }), "broken");
}

TEST(BoundedQueue, StopWakesBothSidesAndDropsWhatIsThere) {
  BoundedQueue<int> full(1);
  full.push(1);
  std::thread producer([&] { full.push(2); });
  BoundedQueue<int> empty(1);
  std::thread consumer([&] { EXPECT_EQ(empty.pop(), std::nullopt); });
  full.stop();
  empty.stop();
  producer.join();
  consumer.join();
  EXPECT_EQ(full.pop(), std::nullopt);
}

}  // namespace
}  // namespace isthmus::data
