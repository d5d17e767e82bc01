// replica.average_every: ranks that train on their own and average their parameters now and then.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "isthmus/trainer/checkpoint.h"
#include "replica/shares.h"
#include "site_on_threads.h"

namespace isthmus::trainer {
namespace {

using outer_sync::Range;
using Values = std::vector<float>;

constexpr std::int64_t rows = 4, length = 12;

SiteOnThreads site_of(std::uint32_t ranks, std::uint64_t average_every,
                      const ReplicaOptions& options = small_options(), std::uint32_t per_sequence = 1) {
  return {ranks, false, options, per_sequence, small_table(), average_every};
}

/// One step on a batch that depends only on the step.
float step(Replica& replica) {
  OwnedBatch batch(replica.steps() + 100, rows, length);
  const auto loss = replica.forward_backward(batch.get());
  replica.inner_step(1e-2);
  return loss;
}

/// Two replicas of one rank each that do what two ranks should.
class Pair {
 public:
  explicit Pair(ReplicaOptions options = small_options()) {
    options.inner.clip = 0.05;  // as SiteOnThreads
    for (auto& replica : replicas_)
      replica = std::make_unique<Replica>(small_table(), rank_options(options, small_table(), 0, 2, false));
  }
  /// The mean loss.
  float step() {
    OwnedBatch batch(replicas_[0]->steps() + 100, rows, length);
    const auto whole = batch.get();
    std::array<float, 2> losses{};
    for (std::size_t i = 0; i < 2; ++i) {
      auto own = whole;
      own.rows = whole.rows.subspan(i * rows / 2, rows / 2);
      losses[i] = replicas_[i]->forward_backward(own);
      replicas_[i]->inner_step(1e-2);
    }
    return static_cast<float>((double{losses[0]} + double{losses[1]}) / 2);
  }
  void average(Range range) {
    const auto mean = mean_of(values(0, range), values(1, range));
    for (auto& replica : replicas_) set(*replica, range, mean);
  }
  void average_moments() {
    const Range all{0, replicas_[0]->table().buffer_size()};
    const auto first = mean_of(replicas_[0]->first_moment(all), replicas_[1]->first_moment(all));
    const auto second = mean_of(replicas_[0]->second_moment(all), replicas_[1]->second_moment(all));
    for (auto& replica : replicas_) replica->set_moments(all, first, second);
  }
  void set(Range range, std::span<const float> to) {
    for (auto& replica : replicas_) set(*replica, range, to);
  }
  [[nodiscard]] Values values(std::size_t rank, Range range) {
    return values_of(replicas_[rank]->read(range));
  }
  [[nodiscard]] Values values(std::size_t rank) { return values_of(replicas_[rank]->parameters()); }

 private:
  static Values mean_of(std::span<const float> a, std::span<const float> b) {
    Values mean(a.size());
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = (a[i] + b[i]) / 2;
    return mean;
  }
  static void set(Replica& replica, Range range, std::span<const float> to) {
    std::ranges::copy(to, replica.modify(range).begin());
    replica.modified(range);
  }

  std::array<std::unique_ptr<Replica>, 2> replicas_;
};

void train_both(Replica& site, Pair& pair, int steps) {
  for (int i = 0; i < steps; ++i) EXPECT_EQ(step(site), pair.step());
}

Range all_of(Replica& replica) { return {0, replica.table().buffer_size()}; }

TEST(RankAverages, AreMeansOfRanksThatTrainOnTheirOwn) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    auto site = site_of(2, 3, small_options(precision));
    Pair pair(small_options(precision));
    for (int i = 1; i <= 9; ++i) {
      EXPECT_EQ(step(*site), pair.step()) << i;
      if (i % 3 == 0) {
        EXPECT_NE(pair.values(0), pair.values(1)) << "there is something to average";
        pair.average(all_of(*site));
      }
      EXPECT_EQ(values_of(site->parameters()), pair.values(0)) << i;
    }
    EXPECT_EQ(site->steps(), 9U);
  }
}

TEST(RankAverages, AreMadeOfARangeThatIsReadOrChanged) {
  auto site = site_of(2, 100);
  Pair pair;
  const auto first = site->table().layout().fragment(0), second = site->table().layout().fragment(1);
  train_both(*site, pair, 2);
  pair.average(first);
  EXPECT_EQ(values_of(site->read(first)), pair.values(1, first));
  EXPECT_EQ(values_of(site->device_values(first)), pair.values(1, first)) << "it is averaged once";
  train_both(*site, pair, 2);
  pair.average(second);
  auto changed = values_of(site->modify(second));
  EXPECT_EQ(changed, pair.values(1, second));
  for (auto& value : changed) value *= 0.5F;
  std::ranges::copy(changed, site->modify(second).begin());
  site->modified(second);
  pair.set(second, changed);
  train_both(*site, pair, 2);
  EXPECT_EQ(values_of(site->parameters()), pair.values(0)) << "the rest was left alone";
}

TEST(RankAverages, AGradientThatIsGivenOutIsTheMeanAndKeepsRanksEqual) {
  for (const std::uint32_t ranks : {2U, 3U}) {
    auto each_step = SiteOnThreads(ranks, false), site = site_of(ranks, 100);
    for (std::uint64_t i = 0; i < 4; ++i) {
      for (auto* replica : {&each_step, &site}) {
        OwnedBatch batch(i, 12, length);
        (*replica)->forward_backward(batch.get());
        for (auto& value : (*replica)->gradients()) value *= 2;
        (*replica)->inner_step(1e-2);
      }
    }
    // Not even the last bit may differ: in the synchronous warm-up these are the values of all members.
    EXPECT_EQ(values_of(site->read(all_of(*site))), values_of(each_step->parameters()));
    EXPECT_EQ(site->state().second_moment, each_step->state().second_moment);
  }
}

TEST(RankAverages, ACheckpointHasTheMeansAndTrainingGoesOnFromThem) {
  TemporaryFolder folder;
  const auto file = folder / "replica.ckpt";
  Values after;
  {
    auto site = site_of(2, 3);
    Pair pair;
    train_both(*site, pair, 3);
    pair.average(all_of(*site));
    train_both(*site, pair, 1);
    pair.average(all_of(*site));
    pair.average_moments();
    save_replica(file, *site, {});
    EXPECT_EQ(site->state().parameters, pair.values(1));
    train_both(*site, pair, 2);
    pair.average(all_of(*site));
    train_both(*site, pair, 2);
    EXPECT_EQ(values_of(site->parameters()), pair.values(0));
    after = site->state().parameters;
  }
  auto again = site_of(2, 3);
  static_cast<void>(load_replica(file, *again));
  for (int i = 0; i < 4; ++i) step(*again);
  EXPECT_EQ(again->state().parameters, after);
  auto one = Replica(small_table(), small_options());
  EXPECT_NO_THROW(static_cast<void>(load_replica(file, one))) << "with another number of ranks";
}

TEST(RankAverages, RanksThatShareSequencesAverageTheirGradients) {
  // Two groups of two ranks do what two ranks do, up to rounding.
  auto site = site_of(4, 3, small_options(), 2), two = site_of(2, 3);
  for (int i = 1; i <= 5; ++i) {
    EXPECT_NEAR(step(*site), step(*two), 1e-4) << i;
    EXPECT_LT(distance(site->parameters(), two->parameters()), 1e-3) << i;
  }
  EXPECT_NO_THROW(static_cast<void>(site->state()));
}

TEST(RankAverages, MomentsMayBeResetAndTakenFromOthers) {
  auto donor = site_of(2, 4), joiner = site_of(3, 4);
  for (int i = 0; i < 3; ++i) step(*donor);
  const auto all = all_of(*donor);
  const auto values = values_of(donor->read(all));
  std::ranges::copy(values, joiner->modify(all).begin());
  joiner->modified(all);
  joiner->set_moments(all, values_of(donor->first_moment(all)), values_of(donor->second_moment(all)));
  joiner->set_steps(donor->steps());
  EXPECT_EQ(joiner->state().parameters, values) << "equal values are not averaged";
  EXPECT_EQ(joiner->steps(), 3U);
  joiner->forget_moments();
  EXPECT_THAT(joiner->state().second_moment, testing::Each(0));
}

}  // namespace
}  // namespace isthmus::trainer
