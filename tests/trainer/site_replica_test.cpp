#include "isthmus/trainer/site_replica.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/socket.h>

#include <cmath>
#include <initializer_list>
#include <thread>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/trainer/checkpoint.h"
#include "replica/row_balance.h"
#include "replica/shares.h"
#include "site_on_threads.h"

namespace isthmus::trainer {
namespace {

using outer_sync::Range;
using testing::HasSubstr;

using Site = SiteOnThreads;
using Values = std::vector<float>;

ModelShape three_heads() {
  ModelConfig config;
  config.layers = 1;
  config.dim = 12;
  config.heads = 3;
  config.init_std = 0.2;
  config.resolve(12);
  return {config, 31};
}

ReplicaOptions options_of(Precision precision) {
  auto options = small_options(precision);
  options.inner.clip = 0.05;
  return options;
}

/// Trains for `steps` steps on batches of 12 sequences that depend only on the step.
Values train_on_twelve(Replica& replica, std::uint64_t steps) {
  Values losses;
  for (std::uint64_t i = 0; i < steps; ++i) {
    OwnedBatch batch(replica.steps() + 100, 12, 12);
    losses.push_back(replica.forward_backward(batch.get()));
    EXPECT_GT(replica.inner_step(1e-2), 0.05);
  }
  return losses;
}

TEST(Shares, CoverTheBufferOnceAndInOrder) {
  for (const std::uint64_t size : {1UL, 63UL, 64UL, 65UL, 1000UL, 4096UL, 100'001UL}) {
    for (const std::uint64_t ranks : {1UL, 2UL, 3UL, 7UL, 64UL}) {
      std::uint64_t end = 0;
      for (std::uint64_t rank = 0; rank < ranks; ++rank) {
        const auto share = share_of(rank, ranks, size);
        EXPECT_EQ(share.begin, end) << size << ' ' << ranks << ' ' << rank;
        EXPECT_TRUE(share.size == 0 || share.begin % 64 == 0) << share.begin;
        end = share.end();
      }
      EXPECT_EQ(end, size);
    }
  }
}

TEST(Shares, CommonRangesAreWithinBoth) {
  EXPECT_EQ(common({10, 10}, {15, 20}), (Range{15, 5}));
  EXPECT_EQ(common({10, 10}, {0, 100}), (Range{10, 10}));
  EXPECT_EQ(common({10, 10}, {0, 5}).size, 0U);
  EXPECT_EQ(common({10, 10}, {40, 5}).size, 0U);
}

TEST(RankLink, AbortEndsAWaitForAnAnswer) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  RankLink here(ends[0]), there(ends[1]);  // the other end stays open, and never answers
  std::thread waiting([&] { EXPECT_THROW(static_cast<void>(here.answer()), Error); });
  here.abort();
  waiting.join();
}

TEST(SiteReplica, TheGradientIsThatOfOneRankWithTheJoinedBatch) {
  for (const std::uint32_t ranks : {2U, 3U, 4U}) {
    Replica one(small_table(), small_options());
    OwnedBatch batch(3, 12, 12);
    const auto loss = one.forward_backward(batch.get());
    Site site(ranks, false);
    EXPECT_NEAR(site->forward_backward(batch.get()), loss, 1e-5);
    EXPECT_LT(distance(site->gradients(), one.gradients()), 1e-6) << ranks;
  }
}

TEST(SiteReplica, TrainsAsOneRankWithTheJoinedBatchDoes) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    Replica one(small_table(), options_of(precision));
    Site site(2, true, small_options(precision));
    const auto expected = train_on_twelve(one, 20), actual = train_on_twelve(*site, 20);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(actual[i], expected[i], precision == Precision::fp32 ? 2e-3 : 0.1) << i;
    EXPECT_EQ(site->steps(), 20);
  }
}

/// Gradients of ranks that share sequences, relative to that of one rank.
double distance_when_shared(std::uint32_t ranks, std::uint32_t together, const ReplicaOptions& options,
                            const ParameterTable& table = small_table()) {
  Replica one(table, options);
  OwnedBatch batch(3, 4, 12);
  batch.id(5) = batch.id(20) = 7;  // ends documents, if 7 is the separator
  const auto loss = one.forward_backward(batch.get());
  Site site(ranks, false, options, together, table);
  EXPECT_NEAR(site->forward_backward(batch.get()), loss, 1e-2);
  return distance(site->gradients(), one.gradients());
}

std::vector<double> sums_of_parts(std::span<const double> work, std::size_t parts) {
  const auto rows = balanced_rows(work, parts);
  auto all = rows;
  std::ranges::sort(all);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], i) << "every row once";
  std::vector<double> sums(parts);
  for (std::size_t i = 0; i < rows.size(); ++i) sums[i * parts / rows.size()] += work[rows[i]];
  return sums;
}

TEST(RowBalance, PartsHaveEqualNumbersOfRowsAndAboutEqualWork) {
  EXPECT_THAT(sums_of_parts(std::vector<double>{9, 1, 1, 9, 5, 5}, 2), testing::Each(15.0));
  EXPECT_THAT(sums_of_parts(std::vector<double>{100, 1, 1, 1}, 2), testing::UnorderedElementsAre(101.0, 2.0));
  EXPECT_THAT(balanced_rows(std::vector<double>{4, 4, 4, 4}, 2), testing::ElementsAre(0, 2, 1, 3));
  std::vector<double> random;
  for (std::size_t i = 0; i < 256; ++i) random.push_back(static_cast<double>(random_bits(1, 2, i) % 1000));
  const auto sums = sums_of_parts(random, 8);
  EXPECT_LT(std::ranges::max(sums), 1.02 * std::ranges::min(sums));
}

TEST(RowBalance, WorkIsThatOfTheDocuments) {
  OwnedBatch batch(3, 2, 600);
  for (std::size_t t = 0; t < 2 * 601; ++t) batch.id(t) = 1;
  batch.id(199) = batch.id(399) = 7;
  EXPECT_THAT(attention_work(batch.get(), 7), testing::ElementsAre(3 * 200.0 * 200.0, 600.0 * 600.0));
}

/// Gradients of two ranks, relative to that of one rank, with rows of 300 tokens and documents that end at
/// these places of the batch.
double distance_with_documents(std::int64_t rows, std::initializer_list<std::size_t> ends,
                               std::uint32_t ranks_per_sequence) {
  constexpr std::uint16_t separator = 7;
  auto options = small_options();
  options.separator = separator;
  options.longest_sequence = 300;
  Replica one(small_table(), options);
  OwnedBatch batch(3, rows, 300);
  for (std::size_t t = 0; t < static_cast<std::size_t>(rows) * 301; ++t)
    batch.id(t) += batch.id(t) == separator ? 1 : 0;
  for (const auto end : ends) batch.id(end) = separator;
  one.forward_backward(batch.get());
  Site site(2, false, options, ranks_per_sequence);
  site->forward_backward(batch.get());
  return distance(site->gradients(), one.gradients());
}

/// Rows with documents of several lengths: other rows on each rank, but the same gradient.
TEST(RowBalance, TheGradientIsThatOfOneRank) {
  EXPECT_LT(distance_with_documents(4, {130, 150, 301 + 140, 602 + 290}, 1), 1e-6);
}

TEST(SharedSequences, TheGradientIsThatOfOneRank) {
  const ParameterTable gpt2(small_gpt2_shape(), 3, 1024);
  auto documents = small_options(), recomputed = small_options(), in_parts = small_options();
  documents.separator = 7;
  recomputed.trainer.activation_checkpointing = true;
  in_parts.trainer.micro_batch = 1;
  auto z_loss = small_options();
  z_loss.inner.z_loss = 1e-2;
  EXPECT_LT(distance_when_shared(2, 2, small_options()), 1e-6);
  EXPECT_LT(distance_when_shared(4, 2, small_options()), 1e-6) << "two groups of two ranks";
  EXPECT_LT(distance_when_shared(2, 2, documents), 1e-6);
  EXPECT_LT(distance_when_shared(2, 2, recomputed), 1e-6);
  EXPECT_LT(distance_when_shared(4, 2, in_parts), 1e-6);
  EXPECT_LT(distance_when_shared(2, 2, z_loss), 1e-6);
  EXPECT_LT(distance_when_shared(3, 3, small_options(), ParameterTable(three_heads(), 3, 1024)), 1e-6);
  EXPECT_LT(distance_when_shared(4, 4, small_options(), gpt2), 1e-6) << "three tokens on each rank";
  EXPECT_LT(distance_when_shared(2, 2, documents, gpt2), 1e-6);
  EXPECT_LT(distance_when_shared(2, 2, small_options(Precision::bf16)), 0.03);
}

/// Documents that are computed one by one, on ranks that share them.
TEST(SharedSequences, AndLongDocumentsHaveTheGradientOfOneRank) {
  EXPECT_LT(distance_with_documents(2, {131, 170, 301 + 149}, 2), 1e-6);
}

TEST(SharedSequences, ZeroChangesNoBitAndTheBatchMayBeOneSequence) {
  Site plain(2, false, small_options(), 2), sharded(2, true, small_options(), 2);
  for (auto* site : {&plain, &sharded}) {
    for (std::uint64_t step = 0; step < 4; ++step) {
      OwnedBatch batch(step, 1, 12);
      (*site)->forward_backward(batch.get());
      (*site)->inner_step(1e-2);
    }
  }
  EXPECT_EQ(sharded->state().parameters, plain->state().parameters);
}

TEST(SharedSequences, ABatchThatTheGroupsCannotDivideIsAnError) {
  Site site(4, false, small_options(), 2);
  OwnedBatch batch(3, 3, 12);
  try {
    site->forward_backward(batch.get());
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_THAT(error.what(), HasSubstr("among 4 ranks, 2 for each sequence"));
  }
}

TEST(SiteReplica, ZeroChangesNoBit) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    for (const std::uint32_t ranks : {2U, 3U}) {
      Site plain(ranks, false, small_options(precision)), sharded(ranks, true, small_options(precision));
      EXPECT_EQ(train_on_twelve(*sharded, 6), train_on_twelve(*plain, 6)) << to_string(precision);
      const auto expected = plain->state(), actual = sharded->state();
      EXPECT_EQ(actual.parameters, expected.parameters);
      EXPECT_EQ(actual.first_moment, expected.first_moment);
      EXPECT_EQ(actual.second_moment, expected.second_moment);
      EXPECT_GT(std::ranges::count_if(expected.second_moment, [](float v) { return v > 0; }), 1000);
    }
  }
}

TEST(SiteReplica, AllRanksHaveTheSameParametersAfterEveryStep) {
  for (const bool zero : {false, true}) {
    Site site(3, zero);
    for (int step = 0; step < 5; ++step) {
      train_on_twelve(*site, 1);
      EXPECT_NO_THROW(static_cast<void>(site->state()));  // state() compares the ranks
      const auto& fragment = site->table().layout().fragment(static_cast<outer_sync::FragmentId>(step % 3));
      for (auto& value : site->modify(fragment)) value *= 0.5F;
      site->modified(fragment);
      EXPECT_NO_THROW(static_cast<void>(site->state()));
    }
  }
}

/// Proves that the test above can fail.
TEST(SiteReplica, OtherParametersOnARankAreNamed) {
  Site site(3, false);
  train_on_twelve(*site, 1);
  // Without the other ranks' knowledge, like a fault.
  site->Replica::modify({5, 1})[0] += 1;
  site->Replica::modified({5, 1});
  try {
    static_cast<void>(site->state());
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::divergence);
    EXPECT_THAT(error.what(), HasSubstr("rank 1"));
  }
}

TEST(SiteReplica, AGradientThatWasGivenOutIsTheOneThatAllUse) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    Site site(2, true, small_options(precision));
    OwnedBatch batch(1, 12, 12);
    for (int step = 0; step < 3; ++step) {
      site->forward_backward(batch.get());
      const auto gradient = site->gradients();
      for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] *= 2;
      site->inner_step(1e-2);
      EXPECT_NO_THROW(static_cast<void>(site->state()));
    }
    site->forward_backward(batch.get());
    std::ranges::fill(site->gradients(), 0.0F);
    EXPECT_EQ(site->inner_step(1e-2), 0);
  }
}

TEST(SiteReplica, GoesOnWithAnotherNumberOfRanks) {
  TemporaryFolder folder;
  const auto file = folder / "replica.ckpt";
  ReplicaState before;
  Values expected;
  {
    Site site(3, true);
    train_on_twelve(*site, 4);
    before = site->state();
    save_replica(file, *site, {});
    expected = train_on_twelve(*site, 4);
  }
  for (const auto& [ranks, zero] : {std::pair{3U, true}, {3U, false}}) {
    Site same(ranks, zero);
    static_cast<void>(load_replica(file, *same));
    EXPECT_EQ(same->steps(), 4);
    EXPECT_EQ(same->state().second_moment, before.second_moment);
    EXPECT_EQ(train_on_twelve(*same, 4), expected) << zero;
  }
  const auto expect_close = [&](Replica& replica) {
    static_cast<void>(load_replica(file, replica));
    EXPECT_EQ(replica.state().first_moment, before.first_moment);
    const auto losses = train_on_twelve(replica, 4);
    for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 2e-3);
  };
  Site two(2, true);
  expect_close(*two);
  Replica one(small_table(), options_of(Precision::fp32));
  expect_close(one);
}

TEST(SiteReplica, GivesAndTakesMomentsInAnyParts) {
  Site donor(3, true), joiner(2, true);
  train_on_twelve(*donor, 4);
  train_on_twelve(*joiner, 2);  // its own steps, which are overwritten
  const Range all{0, donor->table().buffer_size()};
  std::ranges::copy(donor->read(all), joiner->modify(all).begin());
  joiner->modified(all);
  for (const Range part : {Range{0, 128}, Range{128, 1000}, Range{1128, all.size - 1128}}) {
    const auto first = values_of(donor->first_moment(part));
    joiner->set_moments(part, first, donor->second_moment(part));
  }
  joiner->set_steps(donor->steps());
  const auto expected = donor->state(), actual = joiner->state();
  EXPECT_EQ(actual.first_moment, expected.first_moment);
  EXPECT_EQ(actual.second_moment, expected.second_moment);
  EXPECT_EQ(actual.steps, 4U);
  joiner->forget_moments();
  EXPECT_THAT(joiner->state().second_moment, testing::Each(0));
  EXPECT_EQ(joiner->steps(), 0U);
  train_on_twelve(*joiner, 2);
  EXPECT_NO_THROW(static_cast<void>(joiner->state()));
}

TEST(SiteReplica, ABatchThatCannotBeSharedOutIsAnError) {
  Site site(2, false);
  OwnedBatch batch(1, 5, 12);
  try {
    site->forward_backward(batch.get());
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("5 sequences"));
  }
}

TEST(SiteReplica, WhatARankThrowsIsThrownWithItsKind) {
  Site site(2, false);
  OwnedBatch batch(1, 4, 12);
  batch.id(3 * 13 + 2) = 31;  // in the last row, which belongs to rank 1
  try {
    site->forward_backward(batch.get());
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.what(), HasSubstr("rank 1"));
    EXPECT_THAT(error.what(), HasSubstr("31"));
  }
}

}  // namespace
}  // namespace isthmus::trainer
