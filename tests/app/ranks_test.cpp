// Replicas of several ranks as processes: how they train, and what happens when a rank is killed.

#include <csignal>

#include "elastic_run.h"
#include "stream_server.h"

namespace isthmus {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const Words two_ranks = {"replica.ranks=2"};
const Words two_ranks_with_zero = {"replica.ranks=2", "replica.zero=true"};

/// Tolerance for other rounding, in nats per byte.
constexpr double rounding = 0.02;

TEST(Ranks, LearnWhatOneLearns) {
  Site site;
  const auto result = site.launch(two_ranks);
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_EQ(site.hash().size(), 64U);  // the hash is equal on both replicas
  const auto summary = site.summary();
  ASSERT_EQ(summary["evaluations"].size(), reference().evaluations.size());
  for (std::size_t i = 0; i < reference().evaluations.size(); ++i) {
    EXPECT_NEAR(summary["evaluations"][i]["loss"].get<double>(),
                reference().evaluations[i]["loss"].get<double>(), rounding);
  }
  EXPECT_THAT(site.logs(), HasSubstr("1 threads in each of 2 ranks"));
  // The tokens of all ranks.
  EXPECT_EQ(summary["tokens"], 2 * 40 * 4 * 32);
  EXPECT_THAT(site.processes(), SizeIs(0));
}

TEST(Ranks, ThatShareSequencesLearnWhatOneLearns) {
  Site site;
  const auto result = site.launch({"replica.ranks=2", "replica.ranks_per_sequence=2"});
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_EQ(site.hash().size(), 64U);
  const auto summary = site.summary();
  ASSERT_EQ(summary["evaluations"].size(), reference().evaluations.size());
  for (std::size_t i = 0; i < reference().evaluations.size(); ++i) {
    EXPECT_NEAR(summary["evaluations"][i]["loss"].get<double>(),
                reference().evaluations[i]["loss"].get<double>(), rounding);
  }
  EXPECT_EQ(summary["tokens"], 2 * 40 * 4 * 32) << "no token is counted twice";
  EXPECT_THAT(site.processes(), SizeIs(0));
}

TEST(Ranks, ZeroChangesNoBitOfARun) {
  Site plain, sharded;
  ASSERT_EQ(plain.launch(two_ranks).status, 0) << plain.logs();
  ASSERT_EQ(sharded.launch(two_ranks_with_zero).status, 0) << sharded.logs();
  EXPECT_EQ(sharded.hash(), plain.hash());
}

TEST(LongRanks, GoOnFromACheckpointWithAsManyAndWithOthers) {
  Site whole, same, other;
  ASSERT_EQ(whole.launch(two_ranks_with_zero).status, 0) << whole.logs();
  auto stopping = two_ranks_with_zero;
  stopping.emplace_back("run.stop_after=24");
  for (auto* site : {&same, &other}) ASSERT_EQ(site->launch(stopping).status, 0) << site->logs();
  auto end = same.resume({"run.stop_after=0"});
  ASSERT_EQ(end.status, 0) << end.report() << same.logs();
  EXPECT_EQ(same.hash(), whole.hash());
  for (const auto* step_and_ranks :
       {"run.stop_after=30 replica.ranks=1", "run.stop_after=0 replica.ranks=4"}) {
    const std::string text = step_and_ranks;
    const auto space = text.find(' ');
    end = other.resume({text.substr(0, space), text.substr(space + 1)});
    ASSERT_EQ(end.status, 0) << end.report() << other.logs();
  }
  EXPECT_NEAR(other.summary()["final_eval_loss"].get<double>(),
              whole.summary()["final_eval_loss"].get<double>(), rounding);
}

// A checkpoint averages the ranks, so the uninterrupted run has one at the step at which the other stops.
TEST(Ranks, ThatAverageTheirParametersLearnAndGoOnFromACheckpoint) {
  Site whole, halves;
  const Words words = {"replica.ranks=2", "replica.average_every=5", "run.checkpoint_every=8"};
  ASSERT_EQ(whole.launch(words).status, 0) << whole.logs();
  auto stopping = words;
  stopping.emplace_back("run.stop_after=24");
  ASSERT_EQ(halves.launch(stopping).status, 0) << halves.logs();
  const auto end = halves.resume({"run.stop_after=0"});
  ASSERT_EQ(end.status, 0) << end.report() << halves.logs();
  EXPECT_EQ(halves.hash(), whole.hash());
  EXPECT_NE(whole.hash(), reference().hash);
  for (const auto& member : whole.summary()["members"])
    EXPECT_GT(member["rank_average_seconds"].get<double>(), 0.0) << member;
  EXPECT_NEAR(whole.summary()["final_eval_loss"].get<double>(),
              reference().evaluations.back()["loss"].get<double>(), 0.1);
}

/// It is the only one with the state, so it comes back as after a crash.
TEST(Ranks, TheOnlyReplicaIsStartedAgainIfItLosesARank) {
  Site site;
  auto launch = site.start_launch({"replicas=1", "replica.ranks=2", "run.restarts=3", "run.steps=1000000",
                                   "inner.schedule=constant", "run.checkpoint_every=5"});
  ASSERT_TRUE(eventually([&] { return site.has_checkpoint("replica-0"); })) << launch.output();
  kill(site.process("replica-0 --rank 1"), SIGKILL);
  ASSERT_TRUE(eventually([&] { return launch.output().find("goes back to") != std::string::npos; }))
      << launch.output() << site.logs();
  const auto lines = site.metric_lines();
  EXPECT_TRUE(eventually([&] { return site.metric_lines() > lines + 10; })) << launch.output() << site.logs();
  launch.signal(SIGINT);
  EXPECT_EQ(launch.wait().status, 130) << site.logs();
}

TEST(Ranks, OfAStreamGetItsRowsFromTheOneThatReadsIt) {
  Site site;
  StreamServer server(site / "feed", [](const std::string&) { return stream_of_lines(1, 20'000); });
  const auto result = site.launch({"data.path=\"" + server.address() + "\"", "replica.ranks=2"});
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
}

/// Two replicas of one rank each, and zz-1 of two.
class LostRank : public ::testing::Test {
 protected:
  void start(const Words& more = {}) {
    run_.start({"eu-1", "us-1"});
    Words words = {"--set", "replica.ranks=2", "--set", "replica.zero=true"};
    words.insert(words.end(), more.begin(), more.end());
    run_.add("zz-1", words);
    ASSERT_TRUE(run_.reaches("zz-1", 15)) << run_.logs();
  }
  /// Fails the test unless the others train on and no process of zz-1 is left.
  void expect_others_go_on() {
    EXPECT_TRUE(eventually([&] { return processes_with(folder() + " ").empty(); })) << run_.logs();
    const auto now = run_.metrics("eu-1").back().value("step", std::uint64_t{0});
    EXPECT_TRUE(run_.reaches("eu-1", now + 30) && run_.reaches("us-1", now + 30)) << run_.logs();
    run_.stop();
  }
  [[nodiscard]] std::string folder() const { return (run_.site().run() / "zz-1").string(); }

  ElasticRun run_{{"replicas=3", "run.steps=1000000", "inner.schedule=constant"}};
};

TEST_F(LostRank, TakesItsReplicaOutAndIsNamed) {
  ASSERT_NO_FATAL_FAILURE(start());
  kill(run_.site().process("zz-1 --rank 1"), SIGKILL);
  const auto end = run_.end_of("zz-1");
  EXPECT_EQ(end.status, 4) << end.report();
  EXPECT_THAT(end.output, HasSubstr("isthmus: rank 1 of zz-1 was killed by signal 9"));
  expect_others_go_on();
}

TEST_F(LostRank, ThatSharedItsSequencesIsNamed) {
  ASSERT_NO_FATAL_FAILURE(start({"--set", "replica.ranks_per_sequence=2"}));
  kill(run_.site().process("zz-1 --rank 1"), SIGKILL);
  const auto end = run_.end_of("zz-1");
  EXPECT_EQ(end.status, 4) << end.report();
  EXPECT_THAT(end.output, HasSubstr("isthmus: rank 1 of zz-1 was killed by signal 9"));
  expect_others_go_on();
}

TEST_F(LostRank, NoneStaysWhenRank0IsKilled) {
  ASSERT_NO_FATAL_FAILURE(start());
  run_.kill("zz-1");
  expect_others_go_on();
}

// Rank 0 waits for other members, not for its ranks.
TEST(Ranks, ARankThatDiesWhileItsReplicaWaitsIsNoticedAtOnce) {
  ElasticRun run({"replica.ranks=2", "replicas=2"});
  run.start({"eu-1"});  // the second replica never comes
  // This is printed when all ranks are there, before the wait for other members.
  ASSERT_TRUE(eventually([&] { return run.logs().find("parameters in 3 fragments") != std::string::npos; }));
  kill(run.site().process("eu-1 --rank 1"), SIGKILL);
  const auto end = run.end_of("eu-1");
  EXPECT_EQ(end.status, 4) << end.report();
  EXPECT_THAT(end.output, HasSubstr("rank 1 of eu-1 was killed by signal 9"));
}

class RanksOfANewcomer : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Moments, RanksOfANewcomer, ::testing::Values("fresh"));
INSTANTIATE_TEST_SUITE_P(LongMoments, RanksOfANewcomer, ::testing::Values("donor"));

TEST_P(RanksOfANewcomer, TakeTheStateOfTheRun) {
  ElasticRun run({"join.inner_state=" + GetParam(), "run.steps=1000000", "inner.schedule=constant",
                  "network.heartbeat=50ms", "run.checkpoint_every=10"});
  // The donors have distributed their moments over ranks too.
  run.start({});
  for (const auto* worker : {"eu-1", "us-1"})
    run.add(worker, {"--set", "replica.ranks=2", "--set", "replica.zero=true"});
  ASSERT_TRUE(run.reaches("eu-1", 30)) << run.logs();
  run.add("zz-1", {"--set", "replica.ranks=4", "--set", "replica.zero=true"});
  const auto begin = run.joined_at("zz-1");
  ASSERT_TRUE(begin) << run.logs();
  ASSERT_TRUE(run.reaches("zz-1", *begin + 25)) << run.logs();  // by then it has compared checkpoints
  run.stop();
  EXPECT_EQ(run.hash().size(), 64U);
}

TEST(Selftest, FindsThisMachineSound) {
  Site site;
  const auto result = site.isthmus({"selftest", "--ranks", "3"});
  EXPECT_EQ(result.status, 0) << result.report();
  for (const auto* part :
       {"codecs on the CPU", "3 ranks on CPU processes: gradients", "equal parameters", "ZeRO-1"})
    EXPECT_THAT(result.output, HasSubstr(part));
  EXPECT_THAT(result.output, ::testing::Not(HasSubstr("FAILED")));
}

TEST(Selftest, RefusesGpusThatAreNotThere) {
  Site site;
  if (std::filesystem::exists("/dev/nvidia0")) GTEST_SKIP() << "this machine has a GPU";
  for (const auto* gpus : {"all", "2", "some"}) {
    const auto result = site.isthmus({"selftest", "--gpus", gpus});
    EXPECT_EQ(result.status, 2) << result.report();
    EXPECT_THAT(result.output, AnyOf(HasSubstr("--gpus is all, but this build can use no GPU"),
                                     HasSubstr("libtorch can use 0")));
  }
}

}  // namespace
}  // namespace isthmus
