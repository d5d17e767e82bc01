// `isthmus ctl` on a running run.

#include <csignal>
#include <fstream>

#include "launched.h"

namespace isthmus {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Json = nlohmann::json;

/// Settings that make a run of one second last for several.
const Words slow_run = {"network.emulate.rtt=100ms", "run.steps=300", "run.stop_grace=60s"};

class Steered : public Launched {
 protected:
  void SetUp() override { begin(); }
  /// Starts a launch and waits until it is past the synchronous steps.
  void begin(const Words& more = {}) {
    auto settings = slow_run;
    settings.insert(settings.end(), more.begin(), more.end());
    start(settings);
  }
  [[nodiscard]] Json last_metrics(const std::string& replica) const {
    std::ifstream in(site.run() / replica / "metrics.jsonl");
    Json last;
    for (std::string line; std::getline(in, line);) {
      auto json = Json::parse(line, nullptr, false);
      if (json.contains("inner_steps")) last = std::move(json);
    }
    return last;
  }
  void expect_finishes() {
    const auto end = launch->wait();
    ASSERT_EQ(end.status, 0) << end.report() << site.logs();
    EXPECT_THAT(site.processes(), SizeIs(0));
  }
};

TEST_F(Steered, ASettingChangesAtOneStepForAllAndRepeatsToTheBit) {
  const Words change = {
      "set", "outer.sync_every=5", "outer.optimizer.lr=0.4", "outer.max_local_rounds=3", "--at", "250"};
  const auto first = ctl(change);
  ASSERT_EQ(first.status, 0) << first.report() << site.logs();
  EXPECT_THAT(first.output, HasSubstr("after step 250"));
  expect_finishes();
  const auto hash = site.hash();
  EXPECT_EQ(last_metrics("replica-0")["inner_steps"], 5);
  EXPECT_EQ(last_metrics("replica-1")["inner_steps"], 5);
  begin();
  const auto second = ctl(change);
  ASSERT_EQ(second.status, 0) << second.report() << site.logs();
  expect_finishes();
  EXPECT_EQ(site.hash(), hash);
}

TEST_F(Steered, WhatCannotBeSetIsRefusedByName) {
  for (const auto& [setting, why] :
       {std::pair{"model.dim=64", "model.dim cannot be set during a run"},
        std::pair{"outer.codec=int8", "outer.codec cannot be set during a run"},
        std::pair{"data.path=/etc", "data.path cannot be set during a run"},
        std::pair{"outer.sync_delay=99", "expected sync_delay < sync_every"},
        std::pair{"outer.merge_alpha=0.3", "where it has no effect"},
        std::pair{"outer.sync_evry=5", "did you mean outer.sync_every?"},
        std::pair{"outer.optimizer.lr=much", "expected a number from 0 to 10"}}) {
    const auto result = ctl({"set", setting});
    EXPECT_EQ(result.status, 2) << result.report();
    EXPECT_THAT(result.output, HasSubstr(why));
  }
  expect_finishes();
}

/// A run that continues until it is stopped, on machines of any speed.
class SteeredOn : public Steered {
 protected:
  void SetUp() override { begin({"run.steps=1000000", "inner.schedule=constant"}); }
};

TEST_F(SteeredOn, PausesWritesACheckpointAndLetsOneLeave) {
  const auto table = ctl({"status"});
  ASSERT_EQ(table.status, 0) << table.report();
  std::istringstream lines(table.output);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
  EXPECT_THAT(table.output, HasSubstr("replica-1"));

  const auto paused = ctl({"pause", "--json"});
  ASSERT_EQ(paused.status, 0) << paused.report() << site.logs();
  const auto step = Json::parse(paused.output)["paused_after_step"];
  ASSERT_TRUE(eventually([&] {
    const auto now = status();
    return now["phase"] == "paused" && now["members"][0]["step"] == step && now["members"][1]["step"] == step;
  })) << status().dump()
      << site.logs();
  const auto resumed = ctl({"resume"});
  ASSERT_EQ(resumed.status, 0) << resumed.report();

  const auto saved = ctl({"checkpoint", "--json"});
  ASSERT_EQ(saved.status, 0) << saved.report() << site.logs();
  const auto at = Json::parse(saved.output)["checkpoint_after_step"];
  // If a replica receives that step too late, the coordinator names a later one.
  Json complete;
  ASSERT_TRUE(eventually([&] { return (complete = status()["checkpoint"]) >= at; }))
      << complete.dump() << site.logs();

  const auto drained = ctl({"drain", "replica-1"});
  ASSERT_EQ(drained.status, 0) << drained.report();
  ASSERT_TRUE(eventually([&] { return status()["members"].size() == 1; })) << site.logs();
  EXPECT_THAT(site.logs(), HasSubstr("left the run at step"));
  launch->signal(SIGINT);
  const auto end = launch->wait();
  EXPECT_EQ(end.status, 130) << end.report() << site.logs();
  EXPECT_THAT(end.output, HasSubstr("all write a checkpoint after step " + complete.dump() + " ("));
  EXPECT_THAT(site.processes(), SizeIs(0));
}

}  // namespace
}  // namespace isthmus
