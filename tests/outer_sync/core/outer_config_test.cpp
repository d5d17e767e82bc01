// Keys `outer.*`: what the methods make of them, which values are rejected before the first step, and which
// are reported.

#include <gmock/gmock.h>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/config/config.h"

namespace isthmus::outer_sync {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

OuterConfig read(std::string_view yaml) {
  auto config = config::read<OuterConfig>(config::Source::from_text(yaml, "a.yaml"));
  config.resolve();
  return config;
}

std::string complaint(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.what();
  }
  return "accepted";
}

TEST(OuterConfig, SyncEveryMayChangeWithTheStep) {
  EXPECT_THAT(read("sync_every: {0: 5, 200: 20}").sync_phases(),
              ElementsAre(SyncPhase{0, 5}, SyncPhase{200, 20}));
  EXPECT_THAT(read("sync_every: 12").sync_phases(), ElementsAre(SyncPhase{0, 12}));
  EXPECT_THAT(complaint([] { (void)read("{sync_every: {0: 20, 200: 3}, sync_delay: 3}"); }),
              HasSubstr("outer.sync_delay is 3 and outer.sync_every is 3"));
}

TEST(OuterConfig, AMethodIsReadAndWrittenByItsName) {
  for (const auto name : method_names()) {
    auto config =
        config::read<OuterConfig>(config::Source::from_text("method: " + std::string(name), "a.yaml"));
    EXPECT_EQ(to_string(config.method), name);
    EXPECT_THAT(config::to_yaml(config), HasSubstr("method: " + std::string(name)));
  }
  EXPECT_THAT(complaint([] { (void)read("method: dilco"); }),
              HasSubstr("method is dilco (a.yaml:1); expected one of streaming_diloco, diloco, local_sgd"));
  EXPECT_THAT(complaint([] { (void)method_of("dilco"); }), HasSubstr("outer.method is dilco"));
}

TEST(OuterConfig, SparseIsThePapersSetting) {
  const auto config = read("{method: sparse, num_fragments: 4, codec_top_k: 32}");
  EXPECT_EQ(config.num_fragments, 1);
  EXPECT_EQ(config.sync_delay, 0);
  EXPECT_EQ(config.merge_alpha, 0);
  EXPECT_EQ(config.codec_spec().kind, quant::CodecKind::topk);
  EXPECT_EQ(config.codec_spec().top_k, 32U);
  EXPECT_TRUE(config.error_feedback);
  EXPECT_EQ(config.feedback_decay, 0.95);
  EXPECT_EQ(config.optimizer.lr, 1);
  EXPECT_EQ(config.outer_momentum(), 0);
  EXPECT_THAT(complaint([] { (void)read("{method: sparse, chunk_elements: 1024}"); }),
              HasSubstr("outer.chunk_elements is 1024; expected a multiple of 4096"));
}

TEST(OuterConfig, TheFirstAndTheLastPartOfARunOnlyAverage) {
  auto config = read("optimizer: {average_first: 0.1, average_last: 0.25}");
  EXPECT_FALSE(config.averages_at(1)) << "the length of the run is not known";
  config.steps = 200;
  EXPECT_TRUE(config.averages_at(1));
  EXPECT_TRUE(config.averages_at(20));
  EXPECT_FALSE(config.averages_at(21));
  EXPECT_FALSE(config.averages_at(150));
  EXPECT_TRUE(config.averages_at(151));
  EXPECT_TRUE(config.averages_at(230)) << "the round of the final sync";
  config = read("optimizer: {average_first: 0, average_last: 0}");
  config.steps = 200;
  EXPECT_FALSE(config.averages_at(1));
  EXPECT_FALSE(config.averages_at(200));
  EXPECT_FALSE(config.averages_at(230)) << "the round of the final sync";
}

TEST(OuterConfig, TheLengthOfARunChoosesTheOuterStep) {
  auto config = read("{}");
  EXPECT_EQ(config.outer_momentum(), 0.9) << "a run of unknown length counts as long";
  EXPECT_EQ(config.average_first(), 0.1);
  struct Expected {
    std::int64_t steps;
    double momentum, average_first;
  };
  for (const auto& expected : {Expected{50, 0, 0.5}, Expected{400, 0.6, 0.25}, Expected{1600, 0.8, 0.1},
                               Expected{6400, 0.9, 0.1}, Expected{1'000'000, 0.9, 0.1}}) {
    config.steps = expected.steps;
    EXPECT_EQ(config.outer_momentum(), expected.momentum) << expected.steps;
    EXPECT_EQ(config.average_first(), expected.average_first) << expected.steps;
    EXPECT_EQ(rule_at(config, static_cast<std::uint64_t>(expected.steps / 2 + 1)).momentum,
              static_cast<float>(expected.momentum));
  }
  config = read("optimizer: {momentum: 0.3, average_first: 0}");
  config.steps = 400;
  EXPECT_EQ(config.outer_momentum(), 0.3);
  EXPECT_EQ(config.average_first(), 0);
  EXPECT_THAT(
      complaint([] { (void)read("optimizer: {momentum: automatic}"); }),
      HasSubstr("optimizer.momentum is automatic (a.yaml:1); expected auto, or a number from 0 to 0.9999"));
}

TEST(OuterConfig, WhatHasAMergeOfItsOwnKeepsIt) {
  EXPECT_TRUE(read("{}").carries());
  EXPECT_TRUE(read("method: diloco").carries());
  EXPECT_FALSE(read("merge: alpha").carries());
  EXPECT_TRUE(read("{sync_every: 12, sync_delay: 11}").carries()) << "also if results are late";
  EXPECT_FALSE(read("method: sparse").carries());
  EXPECT_FALSE(read("error_feedback: true").sender_feedback());
  EXPECT_TRUE(read("{merge: alpha, error_feedback: true}").sender_feedback());
}

TEST(OuterConfig, MembersThatARunCannotHaveAreRefused) {
  const auto why = [](std::string_view yaml, std::int64_t replicas) {
    return complaint([&] { read(yaml).take_replicas(replicas); });
  };
  EXPECT_EQ(why("{min_replicas: 2, quorum: 3}", 4), "accepted");
  EXPECT_EQ(why("{}", 1), "accepted");
  EXPECT_EQ(why("min_replicas: 5", 4),
            "outer.min_replicas is 5 and replicas is 4; expected min_replicas <= replicas");
  EXPECT_EQ(why("quorum: 5", 4), "outer.quorum is 5 and replicas is 4; expected quorum <= replicas");
  EXPECT_EQ(why("{min_replicas: 3, quorum: 2}", 4),
            "outer.quorum is 2 and replicas is 4; expected quorum >= outer.min_replicas, which is 3");
}

TEST(OuterConfig, HalfOfTheReplicasAreNeededUnlessItSaysOtherwise) {
  const auto least = [](std::string_view yaml, std::int64_t replicas) {
    auto config = read(yaml);
    config.take_replicas(replicas);
    return config.required_replicas();
  };
  EXPECT_EQ(least("{}", 1), 1);
  EXPECT_EQ(least("{}", 4), 2);
  EXPECT_EQ(least("{}", 5), 3);
  EXPECT_EQ(least("min_replicas: 4", 5), 4);
}

TEST(NetworkValues, AreReadAsOnTheCommandLine) {
  EXPECT_EQ(rate_of("40Mbps").bytes_per_second(), 5'000'000U);
  EXPECT_TRUE(calendar_of("\"\"").empty());
  EXPECT_EQ(calendar_of("utc+1; mon-fri 8:00-18:00 20Mbps").text(), "utc+1; mon-fri 8:00-18:00 20Mbps");
  EXPECT_THROW(static_cast<void>(calendar_of("noon closed")), Error);
  EXPECT_THROW(static_cast<void>(calendar_of("")), Error) << "no value";
}

TEST(OuterConfig, UnusualSettingsAreSaidAloud) {
  EXPECT_THAT(read("{num_fragments: 3, sync_every: 30}").notes(), IsEmpty());
  EXPECT_THAT(
      read("{num_fragments: 3, sync_every: 10}").notes(),
      ElementsAre(
          "outer.sync_every is 10, not a multiple of the 3 fragments: they are sent at uneven intervals"));
  EXPECT_THAT(read("{num_fragments: 3, sync_every: {0: 2, 100: 30}}").notes(),
              ElementsAre("outer.sync_every is 2 and there are 3 fragments: several are sent in one step"));
  EXPECT_THAT(read("{merge: alpha, merge_alpha: 1}").notes(),
              ElementsAre(HasSubstr("results never change the local parameters")));
  EXPECT_THAT(read("merge_alpha: 1").notes(), ElementsAre(HasSubstr("no effect with outer.merge: carry")));
  EXPECT_THAT(read("{merge: alpha, codec: 2bit}").notes(),
              ElementsAre(HasSubstr("its losses are permanent")));
  EXPECT_THAT(read("codec: sign").notes(), ElementsAre(HasSubstr("the chunk owners' losses")));
  EXPECT_THAT(read("codec: 2bit").notes(), IsEmpty());
  EXPECT_THAT(read("method: diloco").notes(), IsEmpty());
  EXPECT_THAT(read("{merge: alpha, codec: 2bit, error_feedback: true}").notes(), IsEmpty());
  EXPECT_THAT(read("{method: data_parallel, num_fragments: 7}").notes(), IsEmpty());
}

}  // namespace
}  // namespace isthmus::outer_sync
