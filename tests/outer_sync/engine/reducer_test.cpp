// The owner's arithmetic: weighted means, checked by hand and against a plain loop.

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "isthmus/outer_sync/engine/reducer.h"

namespace isthmus::outer_sync {
namespace {

using protocol::SharedBytes;
using Values = std::vector<float>;
using Weights = std::vector<std::uint64_t>;

const FragmentLayout one_chunk({{0, 16}}, 16);
constexpr protocol::CodecPlan fp32{.codec = {quant::CodecKind::fp32},
                                   .warmup_codec = {quant::CodecKind::fp32}};

SharedBytes in_fp32(const Values& values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return std::make_shared<const Bytes>(std::move(bytes));
}

Values mean(const std::vector<Values>& contributions, const Weights& weights) {
  Reducer reducer(one_chunk, fp32);
  std::vector<SharedBytes> encoded;
  for (const auto& values : contributions) encoded.push_back(in_fp32(values));
  const auto bytes = reducer.reduce(0, 1, encoded, weights).bytes;
  Values out(one_chunk.buffer_size());
  std::memcpy(out.data(), bytes->data(), bytes->size());
  return out;
}

/// A chunk of which every element is `value`.
Values all(float value) { return Values(one_chunk.buffer_size(), value); }

TEST(Reducer, TheMeanIsWeightedByTokens) {
  EXPECT_EQ(mean({all(1), all(5)}, {3, 1}), all(2)) << "(3 * 1 + 1 * 5) / 4";
  EXPECT_EQ(mean({all(1), all(5), all(8)}, {4, 2, 2}), all(3.75F)) << "(4 + 10 + 16) / 8";
}

TEST(Reducer, AWeightOfZeroCountsForNothing) { EXPECT_EQ(mean({all(7), all(3)}, {0, 12}), all(3)); }

TEST(Reducer, EqualWeightsAreThePlainMeanBitForBit) {
  std::vector<Values> contributions(3, Values(one_chunk.buffer_size()));
  for (std::size_t m = 0; m < 3; ++m) {
    for (std::size_t i = 0; i < contributions[m].size(); ++i)
      contributions[m][i] = random_unit(1, m, i) - 0.5F;
  }
  Values expected;
  for (std::size_t i = 0; i < one_chunk.buffer_size(); ++i) {
    expected.push_back((contributions[0][i] + contributions[1][i] + contributions[2][i]) / 3);
  }
  for (const std::uint64_t weight : {1ULL, 7ULL, 16'777'217ULL, 1'000'000'000'000'007ULL}) {
    EXPECT_EQ(mean(contributions, {weight, weight, weight}), expected) << "weight " << weight;
  }
}

TEST(Reducer, WeightsAreRoundedOnceEach) {
  // w = 1, 1/3 and 2/3 in fp32; sums in member order, two roundings each.
  const Values x = all(0.1F), y = all(0.7F), z = all(-0.3F);
  const float second = 1.0F / 3, third = 2.0F / 3;
  float sum = 0.0F + 1.0F * 0.1F;
  sum = sum + second * 0.7F;
  sum = sum + third * -0.3F;
  const float divisor = (1.0F + second) + third;
  EXPECT_EQ(mean({x, y, z}, {300, 100, 200}), all(sum / divisor));
}

TEST(Reducer, ItMeasuresContributionsAndTheMean) {
  Reducer reducer(one_chunk, fp32);
  const std::vector<SharedBytes> contributions = {in_fp32(all(1)), in_fp32(all(-3))};
  const auto made = reducer.reduce(0, 1, contributions, Weights{3, 1});
  EXPECT_THAT(made.measured.squares, testing::ElementsAre(16, 144));
  EXPECT_EQ(made.measured.mean_squares, 0) << "(3 * 1 - 3) / 4";
  const auto other = reducer.reduce(0, 1, contributions, Weights{1, 1});
  EXPECT_EQ(other.measured.mean_squares, 16) << "sixteen times -1";
  EXPECT_THAT(other.measured.dots, testing::ElementsAre(-16, 48));
}

TEST(Reducer, SumsOfSquaresHaveOneOrder) {
  const FragmentLayout longer({{0, 37}}, 48);
  Values values(37);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = random_unit(1, 0, i) * std::ldexp(1.0F, i % 7);
  double sums[16] = {};
  for (std::size_t i = 0; i < values.size(); ++i) sums[i % 16] += double{values[i]} * double{values[i]};
  double expected = 0;
  for (const auto sum : sums) expected += sum;
  EXPECT_EQ(Reducer(longer, fp32).squares(0, 1, *in_fp32(values)), expected);
}

TEST(Reducer, WhatTheRuleLeavesOutIsAsIfItWereNotThere) {
  constexpr protocol::RejectRule rule{.factor = 3, .least = 2};
  auto broken = all(1);
  broken[3] = std::numeric_limits<float>::infinity();
  for (const auto& sick : {all(1e30F), broken}) {
    const std::vector<SharedBytes> healthy = {in_fp32(all(0.25F)), in_fp32(all(0.3F))};
    const std::vector<SharedBytes> with_sick = {healthy[0], in_fp32(sick), healthy[1], in_fp32(all(0.2F))};
    Reducer one(one_chunk, fp32), other(one_chunk, fp32);
    const auto made = one.reduce(0, 1, with_sick, Weights{3, 900, 7, 5}, rule);
    const auto expected =
        other.reduce(0, 1, std::vector{healthy[0], healthy[1], in_fp32(all(0.2F))}, Weights{3, 7, 5});
    EXPECT_EQ(*made.bytes, *expected.bytes) << "not even its weight may count";
    EXPECT_EQ(made.measured.mean_squares, expected.measured.mean_squares);
    EXPECT_EQ(made.measured.squares.size(), 4U) << "all contributions must be measured";
  }
}

TEST(Reducer, AMeanThatIsTooLargeNamesTheLargestContribution) {
  Reducer reducer(one_chunk, fp32);
  const auto huge = in_fp32(all(3e38F));
  const std::vector<SharedBytes> contributions = {in_fp32(all(1)), huge, huge};
  try {
    static_cast<void>(reducer.reduce(0, 1, contributions, Weights{1, 1, 1}));
    FAIL() << "the sum is infinite";
  } catch (const BadContribution& error) {
    EXPECT_EQ(error.contribution, 1U);
    EXPECT_THAT(error.what(), testing::HasSubstr("the mean is not finite, or too large for its codec"));
  }
}

TEST(Reducer, ItNamesWhoseBytesDoNotDecode) {
  Reducer reducer(one_chunk, fp32);
  auto broken = all(1);
  broken[3] = std::numeric_limits<float>::infinity();
  const std::vector<SharedBytes> contributions = {in_fp32(all(1)), in_fp32(broken)};
  try {
    static_cast<void>(reducer.reduce(0, 1, contributions, Weights{1, 1}));
    FAIL() << "infinity must be refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("member 1 sent bytes that do not decode in chunk 0"));
  }
}

}  // namespace
}  // namespace isthmus::outer_sync
