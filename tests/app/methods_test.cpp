// Every method and codec end to end, and their cost on the wire.

#include "site.h"

namespace isthmus {
namespace {

class Setting : public ::testing::TestWithParam<const char*> {};

TEST_P(Setting, ReplicasEndAlike) {
  Site site;
  Words settings = {"run.steps=20", "outer.warmup_steps=4", "outer.sync_every=5"};
  settings.emplace_back(GetParam());
  const auto result = site.launch(settings);
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  const auto summary = site.summary();
  EXPECT_NE(site.hash(), "");
  EXPECT_LT(summary["final_eval_loss"].get<double>(), summary["initial_eval_loss"].get<double>() - 0.3);
  for (const auto& sent : summary["wan_bytes_sent"]) EXPECT_GT(sent["payload"].get<std::uint64_t>(), 0U);
}
INSTANTIATE_TEST_SUITE_P(Methods, Setting,
                         ::testing::Values("outer.method=diloco", "outer.method=local_sgd",
                                           "outer.method=data_parallel", "outer.codec=fp32",
                                           "outer.codec=bf16", "outer.codec=int8", "outer.codec=e3m0",
                                           "outer.codec=4bit", "outer.codec=3bit", "outer.codec=2bit",
                                           "outer.codec=sign", "outer.codec=topk",
                                           "outer.codec_rounding=stochastic", "outer.codec_scale=e5m3",
                                           "outer.error_feedback=true"));

// The baseline of comparisons with Muon. With one replica, an outer step that only averages changes nothing
// except for rounding.
TEST(Muon, OneReplicaTrainsWithoutAnOuterLoopAsUnderOneThatOnlyAverages) {
  const auto loss = [](Words settings) {
    Site site;
    for (const auto* setting : {"replicas=1", "inner.optimizer=muon", "outer.warmup_steps=0", "run.steps=20"})
      settings.emplace_back(setting);
    const auto result = site.launch(settings);
    EXPECT_EQ(result.status, 0) << result.report() << site.logs();
    const auto summary = site.summary();
    EXPECT_LT(summary["final_eval_loss"].get<double>(), summary["initial_eval_loss"].get<double>() - 0.3);
    return summary["final_eval_loss"].get<double>();
  };
  EXPECT_NEAR(loss({"outer.method=data_parallel"}),
              loss({"outer.sync_every=5", "outer.codec=fp32", "outer.merge=carry", "outer.optimizer.lr=1",
                    "outer.optimizer.momentum=0"}),
              1e-3);
}

TEST(Wire, FourBitsPerParameterAndLittleElse) {
  Site site;
  // 1.2 M parameters in one fragment, so every round carries each parameter once.
  const auto result = site.launch({"model.layers=1", "model.dim=256", "model.ffn_dim=1024", "inner.batch=1",
                                   "run.steps=12", "outer.warmup_steps=4", "outer.sync_every=2",
                                   "outer.sync_delay=1", "outer.num_fragments=1", "run.sample_tokens=0"});
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  const auto summary = site.summary();
  const auto parameters = summary["parameters"].get<double>();
  ASSERT_GE(parameters, 1e6);
  const auto rounds = summary["rounds_committed"].get<double>();
  ASSERT_EQ(rounds, 4 + 4 + 1);
  for (const auto& [name, sent] : summary["wan_bytes_sent"].items()) {
    const auto payload = sent["payload"].get<double>();
    const auto total = sent["total"].get<double>();
    EXPECT_LE(8 * payload / (parameters * rounds), 4.30) << name;
    EXPECT_GE(8 * payload / (parameters * rounds), 4.0) << name << ": fewer bits than the codec needs";
    EXPECT_LT(total - payload, 0.01 * payload) << name;
  }
}

}  // namespace
}  // namespace isthmus
