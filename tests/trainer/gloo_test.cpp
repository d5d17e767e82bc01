#include "isthmus/trainer/gloo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/base/error.h"
#include "reserved_port.h"

namespace isthmus::trainer {
namespace {

/// Runs each rank on its own thread.
void with_ranks(int world, const std::function<void(GlooAllReduce&, int)>& work) {
  const ReservedPort reserved;
  const auto port = reserved.number();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([=, &work] {
      GlooAllReduce gloo(
          {.store_port = port, .rank = rank, .world = world, .timeout = std::chrono::seconds(20)});
      work(gloo, rank);
    });
  }
  for (auto& rank : ranks) rank.join();
}

TEST(GlooAllReduce, GivesAllRanksTheSameMean) {
  for (const int world : {1, 2, 4}) {
    const std::size_t n = 10007;
    std::vector<std::vector<float>> values(static_cast<std::size_t>(world), std::vector<float>(n));
    with_ranks(world, [&](GlooAllReduce& gloo, int rank) {
      auto& mine = values[static_cast<std::size_t>(rank)];
      for (int repeat = 0; repeat < 3; ++repeat) {
        for (std::size_t i = 0; i < n; ++i) mine[i] = static_cast<float>(i % 100) + static_cast<float>(rank);
        gloo.mean(mine);
      }
      EXPECT_EQ(gloo.sent_bytes(),
                3 * (2 * static_cast<std::uint64_t>(world - 1) * 4 * n / static_cast<std::uint64_t>(world)));
    });
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(values[0][i], static_cast<float>(i % 100) + static_cast<float>(world - 1) / 2) << i;
    }
    for (const auto& other : values) EXPECT_EQ(other, values[0]);
  }
}

TEST(GlooAllReduce, AStoreThatNobodyServesIsAnError) {
  const ReservedPort unused;
  const auto port = unused.number();
  try {
    GlooAllReduce gloo(
        {.store_port = port, .rank = 1, .world = 2, .timeout = std::chrono::milliseconds(500)});
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::network);
    EXPECT_THAT(error.what(), testing::HasSubstr("127.0.0.1:" + std::to_string(port)));
  }
}

}  // namespace
}  // namespace isthmus::trainer
