// Members that are away or left out, newcomers under load, and a coordinator that has lost its memory.

#include <csignal>

#include "elastic_run.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

Words endless_with(Words settings) {
  settings.insert(settings.end(), {"run.steps=1000000", "inner.schedule=constant", "run.eval_every=0"});
  return settings;
}

/// The newest line of a worker's steps.
nlohmann::json newest_step(const ElasticRun& run, const std::string& worker) {
  nlohmann::json newest;
  for (auto& line : run.metrics(worker)) {
    if (line.contains("loss")) newest = std::move(line);
  }
  return newest;
}

/// Blocks until `holds` is true of the worker's newest step.
bool step_holds(const ElasticRun& run, const std::string& worker,
                const std::function<bool(const nlohmann::json&)>& holds) {
  return eventually([&] {
    const auto line = newest_step(run, worker);
    return line.is_object() && holds(line);
  });
}

// A suspended chunk owner holds up all others until it is lost, so a reducer owns the chunks here. No member
// is lost meanwhile.
TEST(Quorum, RoundsCloseWithoutOneThatStandsStill) {
  ElasticRun run(endless_with({"replicas=3", "reducers=1", "outer.topology=hub", "outer.quorum=2",
                               "outer.grace=50ms", "network.detect_timeout=15s"}));
  run.start({"eu-1", "us-1", "zz-1"});
  run.add("third", {"--reduce-only"});
  ASSERT_TRUE(run.reaches("zz-1", 30)) << run.logs();
  run.signal("zz-1", SIGSTOP);
  const auto begin = newest_step(run, "eu-1")["step"].get<std::uint64_t>();
  ASSERT_TRUE(run.reaches("eu-1", begin + 60)) << "the others wait for zz-1\n" << run.logs();
  const auto line = newest_step(run, "eu-1");
  EXPECT_EQ(line["contributed"], 2) << line;
  EXPECT_EQ(line["participating"], 3) << "zz-1 was taken for lost: " << line;
  run.signal("zz-1", SIGCONT);
  ASSERT_TRUE(step_holds(run, "eu-1", [](const auto& step) { return step["contributed"] == 3; }))
      << "zz-1 does not take part again\n"
      << newest_step(run, "eu-1") << run.logs();
  run.stop();
  EXPECT_EQ(run.summary()["global_hash"].size(), 3U);
  EXPECT_EQ(run.hash().size(), 64U) << "the hash must be equal on all";
}

// With pace time, a worker with much smaller batches makes up to eight times as many steps per interval as
// the others, so it moves farther.
TEST(Reject, WhoMovesFartherThanTheOthersIsLeftOut) {
  ElasticRun run(endless_with({"replicas=3", "outer.reject=1.3", "outer.pace=time", "outer.sync_every=20",
                               "outer.sync_delay=6", "outer.warmup_steps=5", "network.heartbeat=100ms"}));
  run.start({});
  run.add("eu-1", {"--set", "inner.batch=96"});
  run.add("us-1", {"--set", "inner.batch=96"});
  run.add("zz-1", {"--set", "inner.batch=2"});
  ASSERT_TRUE(step_holds(run, "zz-1", [](const auto& line) { return line["rejected"] > 0; }))
      << newest_step(run, "zz-1") << run.logs();
  // On a busy machine zz-1 can be left out before the others have written a first line.
  ASSERT_TRUE(run.reaches("eu-1", 1)) << run.logs();
  const auto step = newest_step(run, "eu-1")["step"].get<std::uint64_t>();
  for (const auto* worker : {"eu-1", "us-1", "zz-1"})
    ASSERT_TRUE(run.reaches(worker, step + 40)) << run.logs();
  EXPECT_EQ(newest_step(run, "eu-1")["rejected"], 0);
  EXPECT_THAT(run.logs(), HasSubstr("the others rejected this replica's contribution"));
  run.stop();
  EXPECT_EQ(run.hash().size(), 64U) << "the hash must be equal on all";
}

/// Three workers; a single one may continue alone, and a missing one is noticed soon.
class Recover : public ::testing::Test {
 protected:
  Recover()
      : run(endless_with({"replicas=3", "outer.min_replicas=1", "network.detect_timeout=5s",
                          "network.heartbeat=100ms", "outer.max_local_rounds=1000000"})) {}
  void begin() {
    run.start({"eu-1", "us-1", "zz-1"});
    for (const auto* worker : {"eu-1", "us-1", "zz-1"}) ASSERT_TRUE(run.reaches(worker, 30)) << run.logs();
  }
  void lose_the_coordinator_and_its_disk() {
    run.kill_coordinator();
    ASSERT_TRUE(std::filesystem::remove(run.site().run() / "coordinator.state"));
  }
  void expect_rounds(const Words& workers) {
    std::uint64_t newest = 0;
    for (const auto& worker : workers)
      newest = std::max(newest, newest_step(run, worker)["step"].get<std::uint64_t>());
    for (const auto& worker : workers) {
      EXPECT_TRUE(run.reaches(worker, newest + 30)) << worker << run.logs();
      EXPECT_TRUE(step_holds(run, worker,
                             [&](const auto& line) {
                               return line["committing"] == true && line["contributed"] == workers.size();
                             }))
          << newest_step(run, worker) << run.logs();
    }
  }
  ElasticRun run;
};

TEST_F(Recover, ARunWhoseCoordinatorHasLostItsDiskGoesOn) {
  begin();
  lose_the_coordinator_and_its_disk();
  run.restart_coordinator();
  ASSERT_TRUE(run.coordinator_says("of this run, which this coordinator does not remember")) << run.logs();
  run.kill_coordinator();
  run.restart_coordinator({"--recover"});
  ASSERT_TRUE(run.coordinator_says("begins with 3 replicas")) << run.logs();
  expect_rounds({"eu-1", "us-1", "zz-1"});
  run.stop();
  EXPECT_EQ(run.summary()["global_hash"].size(), 3U);
  EXPECT_EQ(run.hash().size(), 64U) << "the hash must be equal on all";
}

TEST_F(Recover, ItDoesNotGoOnWithFewerThanHalfUnlessTheOthersAreGivenUpByName) {
  begin();
  lose_the_coordinator_and_its_disk();
  for (const auto* worker : {"eu-1", "zz-1"}) run.kill(worker);
  run.restart_coordinator({"--recover"});
  ASSERT_TRUE(run.coordinator_says("only 1 of 3 trainers of view ")) << run.logs();
  ASSERT_TRUE(run.coordinator_says("(missing: eu-1,zz-1)")) << run.logs();
  run.kill_coordinator();
  run.restart_coordinator({"--recover", "--give-up", "eu-1"});
  ASSERT_TRUE(run.coordinator_says("only 1 of 3 trainers of view ")) << "zz-1 was not listed as missing\n"
                                                                     << run.logs();
  run.kill_coordinator();
  run.restart_coordinator({"--recover", "--give-up", "eu-1,zz-1"});
  ASSERT_TRUE(run.coordinator_says("begins with 1 replicas")) << run.logs();
  expect_rounds({"us-1"});
  run.add("zz-1");
  ASSERT_TRUE(run.joined_at("zz-1")) << "a worker that was given up must join by copying the state\n"
                                     << run.logs();
  expect_rounds({"us-1", "zz-1"});
  run.stop();
  EXPECT_EQ(run.hash().size(), 64U) << "the hash must be equal on both";
}

// Rounds follow one another as fast as possible and fill the links; a newcomer's state has to share these.
TEST(JoinUnderLoad, NewcomersComeInWhileLinesAreFull) {
  ElasticRun run(endless_with({"model.dim=64", "outer.sync_every=3", "outer.sync_delay=1", "outer.codec=fp32",
                               "outer.warmup_steps=2", "network.emulate.rtt=40ms",
                               "network.emulate.rate=40Mbps", "network.heartbeat=100ms"}));
  run.start({"eu-1", "us-1"});
  ASSERT_TRUE(run.reaches("eu-1", 20) && run.reaches("us-1", 20)) << run.logs();
  const auto before = newest_step(run, "eu-1")["step"].get<std::uint64_t>();
  for (const auto* newcomer : {"xx-1", "yy-1", "zz-1"}) run.add(newcomer);  // all at the same time
  for (const auto* newcomer : {"xx-1", "yy-1", "zz-1"}) ASSERT_TRUE(run.joined_at(newcomer)) << run.logs();
  EXPECT_GT(newest_step(run, "eu-1")["step"].get<std::uint64_t>(), before)
      << "the others waited for the newcomers";
  EXPECT_TRUE(step_holds(run, "eu-1", [](const auto& line) { return line["contributed"] == 5; }))
      << newest_step(run, "eu-1") << run.logs();
  run.stop();
  EXPECT_EQ(run.summary()["global_hash"].size(), 5U);
  EXPECT_EQ(run.hash().size(), 64U) << "the hash must be equal on all";
}

}  // namespace
}  // namespace isthmus
