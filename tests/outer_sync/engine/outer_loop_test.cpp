// The outer loop over real protocol members, compared with Algorithm 2 of arXiv 2501.18512, bit for bit in
// fp32.

#include "isthmus/outer_sync/engine/outer_loop.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <optional>
#include <set>

#include "algorithm2.h"
#include "isthmus/base/error.h"
#include "replicas.h"

namespace isthmus::outer_sync {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Values = std::vector<float>;

Algorithm2 reference(const OuterConfig& config, const FragmentLayout& layout, std::size_t members) {
  Algorithm2 out{.every = config.sync_every.parts.front().value,
                 .fragments = layout.fragment_count(),
                 .delay = config.sync_delay,
                 .alpha = static_cast<float>(config.merge_alpha),
                 .lr = static_cast<float>(config.optimizer.lr),
                 .momentum = static_cast<float>(config.outer_momentum()),
                 .nesterov = config.optimizer.nesterov,
                 .carry = config.carries(),
                 .fragment_of = std::vector<std::int64_t>(layout.buffer_size(), -1),
                 .global = {},
                 .velocity = {},
                 .local = {},
                 .sent = {},
                 .in_flight = {}};
  if (config.sync_every.parts.size() > 1) {
    out.change = config.sync_every.parts[1].after;
    out.every_then = config.sync_every.parts[1].value;
  }
  for (FragmentId p = 0; p < layout.fragment_count(); ++p) {
    for (auto i = layout.fragment(p).begin; i < layout.fragment(p).end(); ++i) out.fragment_of[i] = p;
  }
  out.start(initial_parameters(layout), members);
  return out;
}

/// Runs both and compares every value after every step.
void compare_with_algorithm2(const OuterConfig& config, std::size_t members, std::uint64_t steps) {
  Replicas replicas(config, layout_of(static_cast<FragmentId>(config.num_fragments)), members, random_step);
  auto expected = reference(config, replicas.layout(), members);
  replicas.train(steps);
  for (std::uint64_t t = 1; t <= steps; ++t) {
    for (std::size_t m = 0; m < members; ++m) {
      for (std::size_t i = 0; i < expected.global.size(); ++i) {
        if (expected.fragment_of[i] >= 0) expected.local[m][i] += random_step(m, t, i);
      }
    }
    expected.after_step(static_cast<std::int64_t>(t));
    for (std::size_t m = 0; m < members; ++m) {
      ASSERT_EQ(replicas.at(m).globals[t - 1], expected.global) << "global parameters after step " << t;
      ASSERT_EQ(replicas.at(m).locals[t - 1], expected.local[m]) << "replica " << m << " after step " << t;
    }
  }
  replicas.finish();
  expected.finish(config.final_sync);
  for (std::size_t m = 0; m < members; ++m) {
    const auto global = replicas.at(m).loop.global_parameters();
    EXPECT_EQ(Values(global.begin(), global.end()), expected.global) << "after finish";
    EXPECT_EQ(replicas.at(m).local.values, expected.local[m]) << "replica " << m << " after finish";
  }
  replicas.expect_agreement();
}

struct Setting {
  std::size_t members;
  std::int64_t fragments, every, delay;
  std::optional<double> alpha;  // nothing: the carry merge
  std::uint64_t steps;
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << "M " << s.members << ", P " << s.fragments << ", H " << s.every << ", tau " << s.delay << ", "
       << (s.alpha ? "alpha " + std::to_string(*s.alpha) : "carry") << ", " << s.steps << " steps";
}
class Golden : public testing::TestWithParam<Setting> {};

TEST_P(Golden, EveryValueOfEveryStepIsAlgorithm2s) {
  const auto& s = GetParam();
  for (const bool final_sync : {true, false}) {
    for (const bool nesterov : {true, false}) {
      auto config = config_of(s.fragments, s.every, s.delay, s.alpha);
      config.final_sync = final_sync;
      config.optimizer.nesterov = nesterov;
      ASSERT_NO_FATAL_FAILURE(compare_with_algorithm2(config, s.members, s.steps));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    OuterLoop, Golden,
    testing::Values(Setting{1, 1, 1, 0, 0.5, 5},    // a single replica, every step
                    Setting{2, 1, 4, 0, 0, 13},     // DiLoCo
                    Setting{2, 2, 6, 2, 0.5, 20},   // streaming
                    Setting{3, 3, 10, 1, 0.5, 25},  // P does not divide H
                    Setting{4, 5, 3, 2, 0.5, 14},   // H < P
                    Setting{2, 3, 6, 5, 0.5, 23},   // three rounds in flight at a time
                    Setting{2, 2, 4, 1, 0, 11},     // alpha 0 forgets tau local steps
                    Setting{2, 2, 4, 1, 1, 11},     // alpha 1 ignores the results
                    Setting{3, 2, 5, 3, 0.3, 17}, Setting{5, 2, 4, 3, 0.9, 9},
                    Setting{2, 2, 8, 7, 0.5, 3},  // ends before a result is applied
                    Setting{1, 1, 1, 0, std::nullopt, 5}, Setting{2, 1, 4, 0, std::nullopt, 13},
                    Setting{2, 2, 6, 2, std::nullopt, 20}, Setting{3, 3, 10, 1, std::nullopt, 25},
                    Setting{4, 5, 3, 2, std::nullopt, 14}, Setting{2, 3, 6, 5, std::nullopt, 23}));

TEST(OuterLoop, HMayChangeWithTheStep) {
  for (const auto& [first, then] : {std::pair<std::int64_t, std::int64_t>{2, 7}, {7, 3}, {5, 6}, {6, 4}}) {
    for (const std::int64_t change : {5, 8, 12}) {
      SCOPED_TRACE(testing::Message() << "H " << first << " to step " << change << ", then " << then);
      auto config = config_of(3, std::min(first, then), 1, 0.5);
      config.sync_every.parts = {{0, first}, {change, then}};
      ASSERT_NO_FATAL_FAILURE(compare_with_algorithm2(config, 2, 30));
    }
  }
}

// One element, worked out on paper: H = 2, tau = 1, alpha = lr = mu = 1/2. Replica 0 moves by 1 in each step,
// replica 1 by 3. Every number is exact.
TEST(OuterLoop, ByHand) {
  auto config = config_of(1, 2, 1, 0.5);
  config.optimizer = {.lr = 0.5, .momentum = 0.5, .nesterov = true};
  const FragmentLayout layout({{0, 1}}, 16);
  Replicas replicas(
      config, layout, [](std::size_t m, std::uint64_t, std::size_t) { return m == 0 ? 1.0F : 3.0F; },
      std::vector<ReplicaState>(2, ReplicaState{{0.0F}, {}}));
  replicas.train(6);
  const auto column = [](const std::vector<Values>& history) {
    Values out;
    for (const auto& values : history) out.push_back(values[0]);
    return out;
  };
  // Step 2 sends -2 and -6. Step 3 applies: g = -4, v = -4, theta = -.5 (-4 - 2) = 3; merged with 3 and 9.
  // Step 4 sends 3 - 4 and 3 - 9. Step 5: g = -3.5, v = -5.5, theta = 3 - .5 (-3.5 - 2.75) = 6.125.
  EXPECT_THAT(column(replicas.at(0).globals), ElementsAre(0, 0, 3, 3, 6.125F, 6.125F));
  EXPECT_THAT(column(replicas.at(0).locals), ElementsAre(1, 2, 3, 4, 5.5625F, 6.5625F));
  EXPECT_THAT(column(replicas.at(1).locals), ElementsAre(3, 6, 6, 9, 9.0625F, 12.0625F));
  replicas.finish();
  // Sent in step 6: -.4375 and -5.9375. g = -3.1875, v = -5.9375, theta = 6.125 + .5 * 6.15625 = 9.203125;
  // merged: 7.8828125 and 10.6328125. Last sync: g = -.0546875, v = -3.0234375, theta = 9.203125 + .5
  // * 1.56640625.
  EXPECT_EQ(replicas.at(0).loop.global_parameters()[0], 9.986328125F);
  EXPECT_EQ(replicas.at(0).local.values[0], 9.986328125F)
      << "after the last sync, local parameters must equal the global ones";
  EXPECT_EQ(replicas.at(1).local.values[0], 9.986328125F);
}

// H = 1, tau = 0, lr = mu = 1/2; both replicas move by 1 in each step, so g = -1. Steps 1, 2, 7 and 8 only
// average. Step 3: v = -1.5, theta = 2 + .5 * 1.75. Step 4: v = -1.75, theta = 2.875 + .5 * 1.875. Every
// number is exact.
TEST(OuterLoop, AveragesAtBothEndsOfTheRun) {
  auto config = config_of(1, 1, 0, std::nullopt);
  config.optimizer = {
      .lr = 0.5, .momentum = 0.5, .nesterov = true, .average_first = 0.25, .average_last = 0.25};
  config.steps = 8;
  config.final_sync = false;
  Replicas replicas(
      config, FragmentLayout({{0, 1}}, 16), [](std::size_t, std::uint64_t, std::size_t) { return 1.0F; },
      std::vector<ReplicaState>(2, ReplicaState{{0.0F}, {}}));
  replicas.train(8);
  Values column;
  for (const auto& values : replicas.at(0).globals) column.push_back(values[0]);
  EXPECT_THAT(column, ElementsAre(1, 2, 2.875F, 3.8125F, 4.78125F, 5.765625F, 6.765625F, 7.765625F));
  replicas.expect_agreement();
}

TEST(OuterLoop, LocalSgdIsPlainAveraging) {
  auto config = config_of(1, 3, 0, 0.5);
  config.method = Method::local_sgd;
  config.resolve();
  Replicas replicas(config, layout_of(1), 3, random_step);
  replicas.train(9);
  auto values = std::vector<std::vector<double>>(3);
  for (auto& replica : values) {
    const auto initial = initial_parameters(replicas.layout());
    replica.assign(initial.begin(), initial.end());
  }
  for (std::uint64_t t = 1; t <= 9; ++t) {
    for (std::size_t i = 0; i < values[0].size(); ++i) {
      for (std::size_t m = 0; m < 3; ++m) values[m][i] += random_step(m, t, i);
      if (t % 3 != 0) continue;
      const auto mean = (values[0][i] + values[1][i] + values[2][i]) / 3;
      for (auto& replica : values) replica[i] = mean;
      EXPECT_NEAR(replicas.at(1).globals[t - 1][i], mean, 1e-5) << "element " << i << " after step " << t;
      EXPECT_EQ(replicas.at(1).locals[t - 1][i], replicas.at(1).globals[t - 1][i]);
    }
  }
}

TEST(OuterLoop, DilocoIsOneFragmentWithoutDelay) {
  auto config = config_of(3, 4, 2, 0.5);
  config.method = Method::diloco;
  config.resolve();
  ASSERT_EQ(config.num_fragments, 1);
  compare_with_algorithm2(config, 2, 10);
}

TEST(OuterLoop, SeveralFragmentsAreInFlightAtOnce) {
  Replicas replicas(config_of(3, 6, 5, 0.5), layout_of(3), 2, random_step);
  std::set<std::pair<FragmentId, protocol::Round>> open;
  std::size_t most = 0;
  replicas.network().on_contribution = [&](std::size_t m, ChunkId chunk, protocol::Round round,
                                           const Bytes&) {
    if (m != 0) return;
    open.insert({replicas.layout().fragment_of(chunk), round});
    std::erase_if(open, [&](const auto& flight) {
      return replicas.at(0).loop.fragments()[flight.first].round >= flight.second;
    });
    most = std::max(most, open.size());
  };
  replicas.train(20);
  EXPECT_EQ(most, 3U);
  EXPECT_EQ(replicas.at(0).loop.stats().rounds, 7U)
      << "fragments 1, 2, 0 were applied at 7, 9, 11, 13, 15, 17, 19";
}

TEST(OuterLoop, OnlyFragmentsThatAreDueAreTouched) {
  Replicas replicas(config_of(2, 4, 1, 0.5), layout_of(2), 2, random_step);
  replicas.train(3);  // fragment 1 is sent at 2 and applied at 3; fragment 0 is sent at 4
  const auto initial = initial_parameters(replicas.layout());
  const auto& global = replicas.at(0).globals.back();
  EXPECT_EQ(Values(global.begin(), global.begin() + 50), Values(initial.begin(), initial.begin() + 50));
  EXPECT_NE(Values(global.begin() + 50, global.end()), Values(initial.begin() + 50, initial.end()));
  EXPECT_EQ(replicas.at(0).loop.fragments()[0].round, 0U);
  EXPECT_EQ(replicas.at(0).loop.fragments()[1].round, 1U);
}

TEST(OuterLoop, PaddingStaysZero) {
  auto config = config_of(3, 3, 1, 0.5);
  config.codec = "int4";
  config.warmup_steps = 2;
  Replicas replicas(config, layout_of(3), 2, random_step);
  replicas.train(11);
  replicas.finish();
  const auto global = replicas.at(0).loop.global_parameters();
  for (const std::size_t i : {40, 49, 91, 99}) EXPECT_EQ(global[i], 0) << "element " << i << " is padding";
}

TEST(OuterLoop, RoundsAndWaitsAreCounted) {
  auto config = config_of(2, 4, 1, 0.5);
  config.warmup_steps = 3;
  Replicas replicas(config, layout_of(2), 2, random_step);
  replicas.train(11);
  const auto& stats = replicas.at(0).loop.stats();
  EXPECT_EQ(stats.warmup_rounds, 6U) << "two fragments in three steps";
  EXPECT_EQ(stats.rounds, 6U + 3U) << "sent at t = 2, 4, 6 after the warm-up and applied; at 8 sent only";
  replicas.finish();
  EXPECT_EQ(stats.rounds, 6U + 3U + 1U + 2U);
  EXPECT_GE(stats.stall_seconds, 0);
}

// ---- quantised ----

OuterConfig quantised(const std::string& codec, bool error_feedback) {
  auto config = config_of(2, 5, 2, 0.5);
  config.codec = codec;
  config.error_feedback = error_feedback;
  return config;
}

TEST(OuterLoop, ReplicasAgreeBitForBitUnderEveryCodec) {
  for (const auto codec : quant::codec_names) {
    for (const bool error_feedback : {false, true}) {
      SCOPED_TRACE(std::string(codec) + (error_feedback ? " with error feedback" : ""));
      auto config = quantised(std::string(codec), error_feedback);
      config.warmup_steps = 3;
      config.warmup_codec = codec;
      Replicas replicas(config, layout_of(2), 3, random_step);
      replicas.train(24);
      replicas.finish();
      replicas.expect_agreement();
    }
  }
}

// The same run on every machine and in every build. If these hashes change, encoded bytes or agreed
// arithmetic have changed: raise protocol::numerics_version then, since such replicas cannot train together.
TEST(OuterLoop, ASmallRunHasItsHashes) {
  auto config = quantised("int4", true);
  config.optimizer.momentum = 0.9;
  config.warmup_steps = 2;
  Replicas replicas(config, layout_of(2), 3, random_step);
  replicas.train(20);
  replicas.finish();
  const auto& fragments = replicas.at(0).loop.fragments();
  EXPECT_EQ(fragments[0].round, 6U);
  EXPECT_EQ(fragments[0].chain.hex(), "c0af439b2d8c6b5a2f3db48cfbcbef3fb73c708fa61d0bee85ace5eefc594508");
  EXPECT_EQ(fragments[1].chain.hex(), "fbbffe4dc21b451970e2fbdba2d171d5bbdf53feb1455f0acdc50533d1b09119");
  EXPECT_EQ(replicas.global_hash().hex(), "b335bf3e3579ef3e023c977a8b8a52a67b207b649c921a29e3385e5b609709ec");
}

TEST(OuterLoop, ASmallRunWithTheCarryMergeHasItsHashes) {
  auto config = quantised("int4", true);
  config.merge = "carry";
  config.optimizer = {.lr = 0.7, .momentum = 0.6, .average_first = 0.25, .average_last = 0.25};
  config.steps = 20;
  config.warmup_steps = 2;
  Replicas replicas(config, layout_of(2), 3, random_step);
  replicas.train(20);
  replicas.finish();
  EXPECT_EQ(replicas.global_hash().hex(), "9ddec46f4dc5e12a459605832c6b7c206d6685ef57cc0cef1060eb19c3e21cf2");
}

TEST(OuterLoop, TheChainIsTheHashOfAllResults) {
  auto config = config_of(1, 1, 0, 0);
  Replicas replicas(config, FragmentLayout({{0, 20}}, 16), 1, random_step);
  Digest chain;
  std::vector<Bytes> chunks(2);
  replicas.network().on_contribution = [&](std::size_t, ChunkId chunk, protocol::Round round,
                                           const Bytes& bytes) {
    chunks[chunk] = bytes;  // with one replica and fp32, the result is the contribution
    if (chunk == 0) return;
    Hasher hasher;
    hasher.update(std::as_bytes(std::span(chain.bytes))).update(std::uint64_t{0}).update(round);
    for (const auto& part : chunks) hasher.update(std::span(part));
    chain = hasher.finish();
  };
  replicas.train(4);
  EXPECT_EQ(replicas.at(0).loop.fragments()[0].chain.hex(), chain.hex());
}

// A later round sends what the codec drops in one round. Element 0 is large, so the block's scale is too
// coarse for the others: without error feedback they never move, with it they arrive within one quantum.
TEST(OuterLoop, ErrorFeedbackLosesNothingInTheLongRun) {
  const auto table = [](std::size_t, std::uint64_t, std::size_t i) { return i == 0 ? 1.0F : 0.01F; };
  for (const bool error_feedback : {false, true}) {
    auto config = config_of(1, 1, 0, 0);
    config.method = Method::local_sgd;
    config.codec = "int4";
    config.error_feedback = error_feedback;
    config.resolve();
    Replicas replicas(config, FragmentLayout({{0, 16}}, 16), 2, table);
    const auto initial = initial_parameters(replicas.layout());
    replicas.train(200);
    const auto moved = replicas.at(0).globals.back()[5] - initial[5];
    if (error_feedback) {
      EXPECT_NEAR(moved, 200 * 0.01F, 0.15F) << "one quantum is 1/7";
    } else {
      EXPECT_EQ(moved, 0) << "this case no longer shows what error feedback is for";
    }
  }
}

// ---- fragments that are only averaged ----

TEST(OuterLoop, TheLastFragmentIsOnlyAveragedIfTheLayoutSaysSo) {
  for (const auto alpha : {std::optional<double>(0.5), std::optional<double>()}) {
    const auto config = config_of(3, 6, 2, alpha);
    auto averaging = config;
    averaging.optimizer = {.lr = 1, .momentum = 0, .nesterov = config.optimizer.nesterov};
    const auto parameters = layout_of(3);
    const auto ranges = parameters.fragments();
    const FragmentLayout layout({ranges.begin(), ranges.end()}, 16, 1);
    Replicas mixed(config, layout, 3, random_step), plain(averaging, parameters, 3, random_step);
    mixed.train(20);
    plain.train(20);
    const auto values = [](Replicas& replicas, FragmentId p) {
      const auto& range = replicas.layout().fragment(p);
      const auto& all = replicas.at(0).globals.back();
      return std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(range.begin),
                                all.begin() + static_cast<std::ptrdiff_t>(range.end()));
    };
    EXPECT_EQ(values(mixed, 2), values(plain, 2));
    EXPECT_NE(values(mixed, 1), values(plain, 1)) << "the others have momentum";
    EXPECT_EQ(mixed.at(0).loop.global_hash(), mixed.at(2).loop.global_hash());
  }
}

// ---- values that are not finite ----

std::string failure_after_bad_value(OuterConfig config, std::uint64_t bad_step, float bad) {
  Replicas replicas(std::move(config), layout_of(2), 2,
                    [&](std::size_t m, std::uint64_t step, std::size_t i) {
                      return m == 1 && step == bad_step && i == 60 ? bad : 0.1F;
                    });
  try {
    replicas.train(12);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::divergence);
    return error.what();
  }
  return "no error";
}

TEST(OuterLoop, ValuesThatAreNotFiniteEndTheRun) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    EXPECT_THAT(
        failure_after_bad_value(quantised("int4", false), 3, bad),
        HasSubstr("outer gradient is not finite, or too large for its codec, at element 10 of fragment 1"));
    EXPECT_THAT(failure_after_bad_value(config_of(2, 5, 2, 0.5), 3, bad), HasSubstr("at step 7"));
    auto warm = quantised("int4", false);
    warm.warmup_steps = 4;
    EXPECT_THAT(
        failure_after_bad_value(warm, 3, bad),
        HasSubstr(
            "a gradient is not finite, or too large for its codec, at element 10 of fragment 1 at step 3"));
  }
}

}  // namespace
}  // namespace isthmus::outer_sync
