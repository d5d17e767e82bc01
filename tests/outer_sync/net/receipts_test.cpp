// Receipts of owners over real sockets: every contribution to every chunk of every round has one, in which it
// is what its member sent.

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "network_run.h"

namespace isthmus::outer_sync {
namespace {

using protocol::Receipt;

/// Receipts of all members. Their codec threads add them.
class Collected final : public protocol::ReceiptSink {
 public:
  void take(const Receipt& receipt) override {
    const std::lock_guard lock(mutex_);
    all_.push_back(receipt);
  }
  [[nodiscard]] std::vector<Receipt> all() const {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Receipt> all_;
};

TEST(Receipts, AreMadeForEachChunkOfEachRoundAfterTheWarmUp) {
  NetworkRun::Options options;
  options.outer.warmup_steps = 2;
  Collected collected;
  NetworkRun run(options);
  run.receipts = &collected;
  run.start();
  run.expect_good_end();
  std::set<std::pair<protocol::Round, ChunkId>> places;
  std::map<FragmentId, protocol::Round> first, last;
  std::map<std::tuple<FragmentId, protocol::Round, std::uint32_t>, std::uint32_t> of_owner;
  // The final sync follows no further step.
  const auto last_round = std::ranges::max(collected.all(), {}, &Receipt::round).round;
  for (const auto& receipt : collected.all()) {
    EXPECT_TRUE(places.emplace(receipt.round, receipt.chunk).second) << "two receipts for one result";
    EXPECT_EQ(receipt.fragment, options.layout.fragment_of(receipt.chunk));
    ++of_owner[{receipt.fragment, receipt.round, receipt.of}];
    ASSERT_EQ(receipt.contributions.size(), 2U);
    for (std::size_t m = 0; m < 2; ++m) {
      EXPECT_EQ(receipt.contributions[m].member, "r" + std::to_string(m));
      EXPECT_TRUE(receipt.contributions[m].kept);
      EXPECT_EQ(receipt.contributions[m].weight > 0, receipt.round < last_round) << receipt.round;
    }
    EXPECT_NE(receipt.contributions[0].bytes, receipt.contributions[1].bytes);
    first.try_emplace(receipt.fragment, receipt.round);
    first[receipt.fragment] = std::min(first[receipt.fragment], receipt.round);
    last[receipt.fragment] = std::max(last[receipt.fragment], receipt.round);
  }
  // Two members own all chunks of a fragment: `of` of one and the rest of the other.
  for (const auto& [key, receipts] : of_owner) {
    const auto [fragment, round, of] = key;
    const bool is_half = 2 * of == options.layout.chunks_of(fragment).size();
    EXPECT_EQ(receipts, is_half ? 2 * of : of) << "fragment " << fragment << ", round " << round;
  }
  std::size_t expected = 0;
  for (FragmentId p = 0; p < options.layout.fragment_count(); ++p) {
    EXPECT_EQ(first[p], 3U) << "the rounds of the warm-up have none";
    expected += (last[p] - first[p] + 1) * options.layout.chunks_of(p).size();
  }
  EXPECT_EQ(places.size(), expected);
}

TEST(Receipts, TellWhichContributionsWereRejected) {
  NetworkRun::Options options;
  options.members = 3;
  options.closing.reject = 4;
  options.table = [](std::size_t m, std::uint64_t step, std::uint64_t i) {
    return random_step(m, step, i) * (m == 1 ? 1000.0F : 1.0F);
  };
  Collected collected;
  NetworkRun run(options);
  run.receipts = &collected;
  run.start();
  run.finish();
  ASSERT_FALSE(collected.all().empty());
  for (const auto& receipt : collected.all()) {
    for (const auto& received : receipt.contributions)
      EXPECT_EQ(received.kept, received.member != "r1") << receipt.round << ' ' << receipt.chunk;
  }
}

}  // namespace
}  // namespace isthmus::outer_sync
