// The file of a comparison: how it is read, and invalid files.

#include <algorithm>

#include "paths.h"
#include "recorded.h"

namespace isthmus {
namespace {

using app::load_comparison;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::filesystem::path compare_configs() { return std::filesystem::path(source_folder) / "configs/compare"; }

constexpr const char* two_arms = R"(
base: base.yaml
seeds: [3, 1]
settings: {inner.lr: 0.5, outer.sync_every: 20}
arms:
  plain: {outer.method: data_parallel}
  often: {outer: {sync_every: 5}, about: four times as often}
sizes:
  small: {settings.run.steps: 8}
  large: {settings.run.steps: 80, arms.often.outer.sync_every: 7}
)";

TEST(Comparison, ArmsGoOverSettingsAndSettingsOverTheBase) {
  const Recorded folder;
  const auto comparison = folder.comparison(two_arms);
  EXPECT_EQ(comparison.size, "small");
  EXPECT_EQ(comparison.folder, folder / "out/comparison-small");
  ASSERT_THAT(comparison.arms, SizeIs(2));
  EXPECT_EQ(comparison.arms[1].about, "four times as often");
  ASSERT_THAT(comparison.runs, SizeIs(4));
  std::vector<std::string> names;
  for (const auto& run : comparison.runs) {
    names.push_back(run.name());
    EXPECT_EQ(run.experiment.inner.lr, 0.5);
    EXPECT_EQ(run.experiment.run.steps, 8);
    EXPECT_EQ(run.experiment.run.seed, run.seed);
    EXPECT_EQ(run.experiment.data.path, (folder / "corpus.txt").string());
    EXPECT_EQ(run.folder(), comparison.folder / run.name());
  }
  EXPECT_THAT(names, ElementsAre("plain-seed-3", "often-seed-3", "plain-seed-1", "often-seed-1"))
      << "ordered by seed, so that the first seeds can be compared early";
  EXPECT_EQ(comparison.runs[0].experiment.outer.sync_every, config::Stepped(20));
  EXPECT_EQ(comparison.runs[1].experiment.outer.sync_every, config::Stepped(5));
}

TEST(Comparison, ASizeGoesOverTheFileAndAssignmentsOverBoth) {
  const Recorded folder;
  const auto large = folder.comparison(two_arms, "large");
  EXPECT_EQ(large.folder.filename(), "comparison-large");
  EXPECT_EQ(large.runs[1].experiment.run.steps, 80);
  EXPECT_EQ(large.runs[1].experiment.outer.sync_every, config::Stepped(7));
  const auto set = load_comparison(folder.file(), "large",
                                   {"seeds=[9]", "settings.run.steps=3", "arms.often.outer.sync_every=2"});
  ASSERT_THAT(set.runs, SizeIs(2));
  EXPECT_EQ(set.runs[1].seed, 9);
  EXPECT_EQ(set.runs[1].experiment.run.steps, 3);
  EXPECT_EQ(set.runs[1].experiment.outer.sync_every, config::Stepped(2));
}

TEST(Comparison, TokensBecomeStepsOfEachArm) {
  const Recorded folder;
  const auto comparison = folder.comparison(R"(
base: base.yaml
budget.tokens: 2000
arms:
  two: {about: 256 tokens in a step}
  four: {replicas: 4}
  sites: {sites: {fast: {inner.batch: 16}, slow: {inner.batch: 4}}}
)");
  ASSERT_THAT(comparison.runs, SizeIs(3));
  EXPECT_EQ(comparison.runs[0].experiment.run.steps, 8);  // 7.8
  EXPECT_EQ(comparison.runs[1].experiment.run.steps, 4);
  EXPECT_EQ(comparison.runs[2].experiment.run.steps, 4);  // 20 sequences of 32
}

TEST(Comparison, TheBaselineIsRunFirst) {
  const Recorded folder;
  const auto comparison =
      folder.comparison("base: base.yaml\nbaseline: b\narms: {a: {inner.lr: 1}, b: {inner.lr: 2}}");
  EXPECT_EQ(comparison.baseline, 1U);
  EXPECT_EQ(comparison.runs[0].name(), "b-seed-1");
}

TEST(Comparison, WhatIsShippedIsSound) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(compare_configs())) {
    const auto name = entry.path().filename().string();
    if (name == "gpu.yaml" || name.starts_with("gate_"))
      continue;  // the base of the others; the gates are checked below
    ++files;
    if (name == "far_sites.yaml") {
      EXPECT_NO_THROW(static_cast<void>(load_comparison(entry.path(), {}, {})));
      continue;  // it has one size
    }
    for (const auto* size : {"small", "gpu"})
      EXPECT_NO_THROW(static_cast<void>(load_comparison(entry.path(), size, {})))
          << entry.path() << " " << size;
  }
  EXPECT_EQ(files, 9U);
}

TEST(Comparison, GatesThatAreShippedAreSound) {
  const auto certified = [](const std::string& name, const std::string& size = {}) {
    return app::load_certified(compare_configs() / name, size, {});
  };
  const auto one = certified("gate_one_replica.yaml"), longer = certified("gate_one_replica.yaml", "long"),
             two = certified("gate_two_replicas.yaml"), delay = certified("gate_delay.yaml"),
             four_times = certified("gate_long.yaml"), bits = certified("gate_bits.yaml"),
             many = certified("gate_replicas.yaml"), muon = certified("gate_muon.yaml"),
             muon_longer = certified("gate_muon.yaml", "long"), scale = certified("gate_scale.yaml"),
             larger = certified("gate_scale.yaml", "10m");
  EXPECT_EQ(one.runs[0].experiment.run.steps, 400);
  EXPECT_EQ(longer.runs[0].experiment.run.steps, 1600);
  EXPECT_EQ(two.gates.at(0).bits, 0.44);
  EXPECT_EQ(delay.runs[1].experiment.outer.sync_delay, 4);
  EXPECT_EQ(four_times.runs[3].experiment.run.steps, 1600);
  ASSERT_THAT(many.gates, SizeIs(2));
  EXPECT_EQ(many.gates[1].bits, 0.3);
  EXPECT_FALSE(bits.runs[3].experiment.outer.error_feedback);
  EXPECT_EQ(muon_longer.runs[0].experiment.run.steps, 1600);
  EXPECT_TRUE(muon.runs[0].experiment.inner.is_muon());
  EXPECT_EQ(scale.runs[0].experiment.model.dim, 96);
  EXPECT_EQ(larger.runs[0].experiment.model.dim, 384);
  for (const auto* comparison :
       {&one, &longer, &two, &delay, &four_times, &bits, &many, &muon, &muon_longer, &scale, &larger}) {
    ASSERT_FALSE(comparison->gates.empty());
    EXPECT_THAT(comparison->keys.seeds, SizeIs(3));
    const auto tokens = comparison == &larger ? 128 * 256 : 64 * 128;
    for (const auto& run : comparison->runs) EXPECT_EQ(app::tokens_per_step(run.experiment), tokens);
  }
}

TEST(Comparison, BadFilesAreRefusedByName) {
  const Recorded folder;
  const std::string arms = "arms: {a: {inner.lr: 1}, b: {inner.lr: 2}}\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {arms, "base is empty; expected the experiment that all arms begin with"},
      {"base: nowhere.yaml\n" + arms, "nowhere.yaml: No such file"},
      {"base: base.yaml\n", "has no arms"},
      {"base: base.yaml\narms: {a: {inner.lr: 1}}", "has one arm"},
      {"base: base.yaml\narms: {a: {inner.lr: 1}, b: {iner.lr: 2}}", "arm b: unknown key iner.lr"},
      {"base: base.yaml\narms: {a: {inner.lr: 1}, b: {inner.lr: fast}}", "inner.lr is fast"},
      {"base: base.yaml\narms: {a: {inner.lr: 1}, b: 3}", "the arm b is a plain value"},
      {"base: base.yaml\narms: {a: {inner.lr: 1}, \"../b\": {inner.lr: 2}}", "it names a folder"},
      {"base: base.yaml\nseeds: []\n" + arms, "seeds is []"},
      {"base: base.yaml\nseeds: [1, 1]\n" + arms, "seeds contains an element twice"},
      {"base: base.yaml\nseeds: [-1]\n" + arms, "seeds is [-1]"},
      {"base: base.yaml\nbaseline: c\n" + arms, "baseline is c, which is not an arm; did you mean"},
      {"base: base.yaml\nseed: 1\n" + arms, "unknown key seed"},
      {"base: base.yaml\nbudget: {tokens: 1, time: 1s}\n" + arms, "budget.tokens and budget.time"},
      {"base: base.yaml\nbudget.tokens: 1\nsettings.run.steps: 3\n" + arms,
       "run.steps is given, and so is budget.tokens"},
      {"base: base.yaml\nsettings.run.seed: 3\n" + arms, "run.seed is set by the comparison"},
      {"base: base.yaml\narms: {a: {run.out: /tmp}, b: {inner.lr: 2}}", "run.out is set by the comparison"},
      {"base: base.yaml\nname: a/b\n" + arms, "name is 'a/b'"},
      {"base: base.yaml\narms: {a: {curve: x.csv, inner.lr: 1}, b: {inner.lr: 2}}", "more than one of"},
      {"arms: {a: {runs: [x], curve: x.csv}, b: {runs: [y]}}", "more than one of"},
      {"arms: {a: {runs: [nowhere]}, b: {runs: [nowhere]}}", "nowhere/config.yaml"},
      {"base: base.yaml\narms: {a: {faults: kill eu at step 3}, b: {inner.lr: 2}}", "there is no worker eu"},
      {"base: base.yaml\narms: {a: {faults: kill replica-1 at step 40}, b: {inner.lr: 2}}",
       "the run has 40 steps"},
      {"base: base.yaml\narms: {a: {faults: kill replica-1 at step 4, outer.method: data_parallel}, b: "
       "{inner.lr: 2}}",
       "which ends when it loses a member"},
      {"base: base.yaml\narms: {a: {faults: kill replica-1}, b: {inner.lr: 2}}",
       "comparison.yaml:2: the fault is 'kill replica-1'; expected 'kill NAME at step N'"},
  };
  for (const auto& [text, said] : cases)
    EXPECT_THAT(error_of([&] { static_cast<void>(folder.comparison(text)); }), HasSubstr(said)) << text;
  EXPECT_THAT(error_of([&] { static_cast<void>(folder.comparison("base: base.yaml\n" + arms, "huge")); }),
              HasSubstr("--size is huge; expected none"));
}

}  // namespace
}  // namespace isthmus
