// Averages in pairs, with real processes.

#include "site.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

// All of it at once: exchanges that nearly all arrive, rounds that stay agreed, and what the run reports.
TEST(Gossip, PairsAverageAndTheRoundsStayAgreed) {
  Site site;
  const auto result = site.launch({"replicas=3", "run.steps=60", "outer.warmup_steps=4",
                                   "outer.sync_every=20", "outer.sync_delay=2", "outer.gossip_every=5"});
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  const auto summary = site.summary();
  EXPECT_NE(site.hash(), "") << "the global parameters are equal on all replicas";
  EXPECT_LT(summary["final_eval_loss"].get<double>(), summary["initial_eval_loss"].get<double>() - 0.3);
  const auto exchanges = summary["exchanges"];
  EXPECT_GT(exchanges["averaged"].get<std::uint64_t>(), 0U);
  // Two of three are in a pair, in 3 fragments, with at most 3 exchanges in each of 3 intervals.
  EXPECT_LE(exchanges["ended"].get<std::uint64_t>(), 2U * 3 * 3 * 3);
  EXPECT_THAT(result.output, HasSubstr("exchanges in pairs; a repeated run may"));
}

TEST(Gossip, WithoutSyncsTheLastOneMakesOneModel) {
  Site site;
  const auto result = site.launch({"replicas=2", "run.steps=40", "outer.warmup_steps=0",
                                   "outer.sync_every=1000", "outer.sync_delay=1", "outer.gossip_every=4"});
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  const auto summary = site.summary();
  EXPECT_NE(site.hash(), "");
  EXPECT_LT(summary["final_eval_loss"].get<double>(), summary["initial_eval_loss"].get<double>() - 0.3);
  EXPECT_GT(summary["exchanges"]["averaged"].get<std::uint64_t>(), 0U);
}

TEST(Gossip, RefusesWhatDoesNotGoWithIt) {
  Site site;
  const auto refusal = [&](const Words& settings) {
    const auto result = site.launch(settings);
    EXPECT_EQ(result.status, 2) << result.report();
    return result.output;
  };
  EXPECT_THAT(refusal({"outer.sync_every=20", "outer.gossip_every=5", "run.audit=true", "outer.log=log"}),
              HasSubstr("run.audit is true and outer.gossip_every is 5; expected 0"));
  EXPECT_THAT(
      refusal({"outer.sync_every=20", "outer.gossip_every=5", "outer.auto.utilization=0.9"}),
      HasSubstr("outer.auto.utilization is set and outer.gossip_every is 5; expected gossip_every 0"));
  EXPECT_THAT(refusal({"outer.sync_every=20", "outer.gossip_every=20"}),
              HasSubstr("expected gossip_every + sync_delay < sync_every"));
}

}  // namespace
}  // namespace isthmus
