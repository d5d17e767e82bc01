// Tests of the buffer pool, and that a run in steady state allocates no memory for chunks.

#include "isthmus/outer_sync/core/buffer_pool.h"
#include "isthmus/outer_sync/engine/memory.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <optional>
#include <thread>

#include "network_run.h"
#include "replicas.h"

namespace isthmus::outer_sync {
namespace {

bool begins_at_a_cache_line(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 64 == 0; }

TEST(BufferPool, ABufferComesBackWhenItsLastUserLetsGo) {
  const BufferPool pool(100, 10);
  auto buffer = pool.take(70);
  EXPECT_EQ(buffer->size(), 70U);
  const auto* memory = buffer->data();
  std::shared_ptr<const AlignedVector<std::byte>> other_user = buffer;
  buffer = nullptr;
  EXPECT_EQ(pool.idle(), 0U);
  other_user = nullptr;
  EXPECT_EQ(pool.idle(), 1U);
  const auto again = pool.take(100);
  EXPECT_EQ(again->size(), 100U);
  EXPECT_EQ(again->data(), memory);
  EXPECT_EQ(pool.made(), 1U);
}

TEST(BufferPool, EveryBufferBeginsAtACacheLine) {
  const BufferPool bytes(37, 10);
  const Pool<float> sums(11, 10);
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(begins_at_a_cache_line(bytes.take(37)->data()));
    const auto one = sums.take(11), two = sums.take(3);
    EXPECT_TRUE(begins_at_a_cache_line(one->data()) && begins_at_a_cache_line(two->data()));
  }
}

TEST(BufferPool, NoMoreThanTheMostAreKept) {
  const BufferPool pool(100, 2);
  std::vector<std::shared_ptr<AlignedVector<std::byte>>> taken;
  for (int i = 0; i < 5; ++i) taken.push_back(pool.take(10));
  EXPECT_EQ(pool.made(), 5U);
  taken.clear();
  EXPECT_EQ(pool.idle(), 2U);
  pool.trim();
  EXPECT_EQ(pool.idle(), 0U);
}

TEST(BufferPool, ABufferThatIsTooLargeIsNotKept) {
  const BufferPool pool(100, 2);
  EXPECT_EQ(pool.take(101)->size(), 101U);
  EXPECT_EQ(pool.idle(), 0U);
}

TEST(BufferPool, BuffersOutliveThePool) {
  std::optional<BufferPool> pool(std::in_place, 100, 10);
  const auto buffer = pool->take(100);
  pool.reset();
  std::ranges::fill(*buffer, std::byte{1});
}

TEST(BufferPool, ManyThreadsTakeAndGiveBack) {
  const BufferPool pool(64, 100);
  {
    std::vector<std::jthread> threads;
    for (std::uint8_t t = 0; t < 4; ++t) {
      threads.emplace_back([&pool, t] {
        for (int i = 0; i < 2000; ++i) {
          auto mine = pool.take(64);
          std::ranges::fill(*mine, std::byte{t});
          const auto another = pool.take(8);
          EXPECT_EQ(mine->front(), std::byte{t});
          EXPECT_EQ(mine->back(), std::byte{t}) << "two threads share one buffer";
        }
      });
    }
  }
  EXPECT_LE(pool.made(), 8U);
  EXPECT_EQ(pool.idle(), pool.made());
}

TEST(SteadyState, AnOuterLoopTakesNoMoreMemory) {
  auto config = config_of(3, 6, 2, 0.5);
  config.codec = "int4";
  config.error_feedback = true;
  config.warmup_steps = 8;
  Replicas replicas(config, layout_of(3), 1, random_step);
  const auto& pool = replicas.network().exchange(0).buffers();
  replicas.train(7);  // the exchange keeps results for a while, for the other members
  const auto warm = pool.made();
  EXPECT_GT(warm, 0U);
  replicas.train(8);
  EXPECT_EQ(pool.made(), warm) << "a warm-up step allocated buffers";
  EXPECT_EQ(pool.idle(), 0U) << "buffers that only the warm-up needed are kept";
  replicas.train(40);
  const auto steady = pool.made();
  EXPECT_LT(steady - warm, warm) << "sending fragments in turn needs less memory than sending all at once";
  replicas.train(300);
  EXPECT_EQ(pool.made(), steady);
}

TEST(SteadyState, NeitherDoesARunOverTheNetwork) {
  auto options = NetworkRun::Options::packing();
  options.steps = 120;
  NetworkRun run(options);
  std::size_t made[2] = {}, most[2] = {};
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    most[m] = std::max(most[m], node.buffers().in_use());
    if (step == options.steps) made[m] = node.buffers().made();
  };
  run.start();
  run.expect_good_end();
  // There are two fragments, each sent 30 times. A chunk needs buffers for our contribution, theirs and the
  // result, packed or not. How many exist at a time depends on which replica is faster, but never more than
  // two rounds' worth and the warm-up's.
  const std::size_t chunks = run.layout().chunk_count();
  for (const auto count : made) EXPECT_LE(count, 3 * 6 * chunks) << "of " << 30 * 4 * chunks;
  const protocol::View view{1, std::vector<protocol::MemberInfo>(2),
                            protocol::balanced_owners(run.layout(), 2)};
  const auto usual = memory_bound(run.outer(), run.layout(), view, 0).usual;
  for (const auto count : most)
    EXPECT_LE(count * largest_encoded_chunk(run.layout(), run.codecs()), usual)
        << "more than the bound reported at the start";
}

TEST(SteadyState, GlobalParametersBeginAtACacheLine) {
  Replicas replicas(config_of(2, 4, 1, 0.5), layout_of(2), 1, random_step);
  EXPECT_TRUE(begins_at_a_cache_line(replicas.at(0).loop.global_parameters().data()));
  const auto states = replicas.save();
  Replicas resumed(config_of(2, 4, 1, 0.5), layout_of(2), random_step, states);
  EXPECT_TRUE(begins_at_a_cache_line(resumed.at(0).loop.global_parameters().data()));
}

}  // namespace
}  // namespace isthmus::outer_sync
