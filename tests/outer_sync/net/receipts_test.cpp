// Receipts of owners over real sockets: every contribution to every chunk of every round has one, in which it
// is what its member sent.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <mutex>
#include <set>

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
  void end_view() override {
    const std::lock_guard lock(mutex_);
    ++views_;
  }
  [[nodiscard]] std::size_t views() const {
    const std::lock_guard lock(mutex_);
    return views_;
  }
  [[nodiscard]] std::vector<Receipt> all() const {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Receipt> all_;
  std::size_t views_ = 0;
};

TEST(Receipts, AreMadeForEachChunkOfEachRoundAfterTheWarmUp) {
  NetworkRun::Options options;
  options.outer.warmup_steps = 2;
  std::array<Collected, 2> of_member;
  NetworkRun run(options);
  run.receipts = {&of_member[0], &of_member[1]};
  run.start();
  run.expect_good_end();
  auto all = of_member[0].all();
  std::ranges::copy(of_member[1].all(), std::back_inserter(all));
  std::set<std::pair<protocol::Round, ChunkId>> places;
  std::map<FragmentId, protocol::Round> first, last;
  // The final sync follows no further step.
  const auto last_round = std::ranges::max(all, {}, &Receipt::round).round;
  for (const auto& receipt : all) {
    EXPECT_TRUE(places.emplace(receipt.round, receipt.chunk).second) << "two receipts for one result";
    EXPECT_EQ(receipt.fragment, options.layout.fragment_of(receipt.chunk));
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
  for (const auto& member : of_member) {
    std::map<std::pair<FragmentId, protocol::Round>, std::uint32_t> owned;
    for (const auto& receipt : member.all()) ++owned[{receipt.fragment, receipt.round}];
    EXPECT_FALSE(owned.empty());
    for (const auto& receipt : member.all())
      EXPECT_EQ(receipt.of, (owned[{receipt.fragment, receipt.round}]))
          << receipt.fragment << ' ' << receipt.round;
    EXPECT_GE(member.views(), 1U) << "a view ended with the run";
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
  run.receipts = {&collected, &collected, &collected};
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
