// Runs that are stopped and resumed end like uninterrupted ones.

#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include "site.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

double loss_at(const nlohmann::json& evaluations, int step) {
  for (const auto& evaluation : evaluations) {
    if (evaluation["step"] == step) return evaluation["loss"];
  }
  ADD_FAILURE() << "no evaluation at step " << step << " in " << evaluations;
  return 0;
}

void expect_stopped_at(const Site& site, int step, const Result& result) {
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  const auto summary = site.summary();
  EXPECT_EQ(summary["steps"], step);
  EXPECT_EQ(summary["stopped"], true);
}

void expect_reference(const Site& site, const Result& result) {
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_EQ(site.hash(), reference().hash);
  const auto summary = site.summary();
  EXPECT_EQ(summary["stopped"], false);
  for (const auto& evaluation : reference().evaluations) {
    EXPECT_EQ(loss_at(summary["evaluations"], evaluation["step"]), evaluation["loss"]) << evaluation;
  }
}

TEST(Resume, GoesOnInTheWarmUpAndWithRoundsInFlight) {
  Site site;
  expect_stopped_at(site, 6, site.launch({"run.stop_after=6"}));
  // Fragment 1 is in flight from step 23 to step 25.
  expect_stopped_at(site, 24, site.resume({"run.stop_after=24"}));
  const auto end = site.resume({"run.stop_after=0"});
  EXPECT_THAT(end.output, HasSubstr("resuming from the checkpoint of step 24"));
  expect_reference(site, end);
}

TEST(Resume, AStopWhereAnEvaluationIsDueReportsItOnce) {
  Site site;
  expect_stopped_at(site, 20, site.launch({"run.stop_after=20"}));
  for (const auto* replica : {"replica-0", "replica-1"}) {
    const auto metrics = read_all(site.run() / replica / "metrics.jsonl");
    const auto first = metrics.find(R"({"step":20,"eval_nats")");
    ASSERT_NE(first, std::string::npos);
    EXPECT_EQ(metrics.find(R"({"step":20,"eval_nats")", first + 1), std::string::npos) << metrics;
  }
  EXPECT_EQ(loss_at(site.summary()["evaluations"], 20), loss_at(reference().evaluations, 20));
}

TEST(Resume, AFinishedRunStaysAsItIs) {
  Site site;
  ASSERT_EQ(site.launch().status, 0) << site.logs();
  const auto summary = read_all(site.run() / "summary.json");
  const auto again = site.resume();
  expect_reference(site, again);
  EXPECT_THAT(again.output, HasSubstr("tiny has finished: it has made its 40 steps"));
  const auto detached = site.isthmus({"launch", "--detach", "--resume", site.run().string()});
  EXPECT_EQ(detached.status, 0) << detached.report();
  EXPECT_THAT(detached.output, HasSubstr("tiny has finished"));
  EXPECT_EQ(read_all(site.run() / "summary.json"), summary) << "it is the one of the run that trained";
}

TEST(Resume, FromAnOlderCheckpointForgetsWhatComesAgain) {
  Site site;
  ASSERT_EQ(site.launch({"run.checkpoint_every=5", "run.keep_checkpoints=0"}).status, 0) << site.logs();
  for (const auto* replica : {"replica-0", "replica-1"}) {
    for (const auto* step : {"20", "25", "30", "35", "40"}) {
      const auto name = std::string("step_0000000000") + step + "_replica_0.ckpt";
      ASSERT_TRUE(std::filesystem::remove(site.run() / replica / "checkpoints" / name)) << name;
    }
  }
  expect_stopped_at(site, 17, site.resume({"run.stop_after=17"}));
  const auto summary = site.summary();
  EXPECT_EQ(summary["final_eval_loss"], loss_at(summary["evaluations"], 17));
  EXPECT_EQ(summary["evaluations"].back()["step"], 17);
  expect_reference(site, site.resume({"run.stop_after=0"}));
}

TEST(Resume, KeepsErrorFeedbackAndTheBaselinesState) {
  for (const auto* setting : {"outer.error_feedback=true", "outer.method=data_parallel"}) {
    Site whole, parted;
    const Words settings = {"run.steps=20", "outer.warmup_steps=2", "outer.sync_every=5", setting};
    ASSERT_EQ(whole.launch(settings).status, 0) << whole.logs();
    auto stopping = settings;
    stopping.emplace_back("run.stop_after=11");
    expect_stopped_at(parted, 11, parted.launch(stopping));
    const auto end = parted.resume({"run.stop_after=0"});
    ASSERT_EQ(end.status, 0) << end.report() << parted.logs();
    EXPECT_EQ(parted.hash(), whole.hash()) << setting;
  }
}

std::string checkpoint_name(int step) {
  const auto digits = std::to_string(step);
  return "checkpoints/step_" + std::string(12 - digits.size(), '0') + digits + "_replica_0.ckpt";
}

/// Flips one bit in the middle of the file.
void damage(const std::filesystem::path& file) {
  auto bytes = read_all(file);
  ASSERT_FALSE(bytes.empty()) << file;
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
}

TEST(Resume, ADamagedCheckpointIsNamedAndAllTakeTheOneBefore) {
  Site site;
  ASSERT_EQ(site.launch({"run.checkpoint_every=5", "run.stop_after=23"}).status, 0) << site.logs();
  const auto damaged = site.run() / "replica-1" / checkpoint_name(23);
  damage(damaged);
  const auto end = site.resume({"run.stop_after=0"});
  EXPECT_THAT(end.output, HasSubstr("resuming from the checkpoint of step 20"));
  expect_reference(site, end);
  const auto log = read_all(site.run() / "replica-1" / "worker.log");
  EXPECT_THAT(log, HasSubstr(damaged.string() + " cannot be used: the checksum of section"));
  EXPECT_TRUE(std::filesystem::exists(site.run() / "replica-0" / (checkpoint_name(23) + ".undone")))
      << "the sound checkpoint is of an abandoned history";
}

TEST(Resume, WhoeverUsesTheModelTakesTheNewestSoundCheckpointAndSaysSo) {
  Site site;
  ASSERT_EQ(site.launch({"run.checkpoint_every=5", "run.stop_after=23"}).status, 0) << site.logs();
  damage(site.run() / "replica-0" / checkpoint_name(23));
  const auto other = site.isthmus({"eval", site.run().string()});
  EXPECT_EQ(other.status, 0) << other.report();
  EXPECT_THAT(other.output, HasSubstr("replica-1/" + checkpoint_name(23) + " instead"));
  damage(site.run() / "replica-1" / checkpoint_name(23));
  const auto older = site.isthmus({"eval", site.run().string()});
  EXPECT_EQ(older.status, 0) << older.report();
  EXPECT_THAT(older.output, HasSubstr("replica-0/" + checkpoint_name(20) + " instead"));
  for (const auto* replica : {"replica-0", "replica-1"}) {
    for (const int step : {5, 10, 15, 20}) {
      const auto file = site.run() / replica / checkpoint_name(step);
      if (std::filesystem::exists(file)) damage(file);
    }
  }
  const auto none = site.isthmus({"eval", site.run().string()});
  EXPECT_EQ(none.status, 3) << none.report();
  EXPECT_THAT(none.output, HasSubstr(checkpoint_name(23)));
}

TEST(Resume, OlderCheckpointsGoAndThoseAskedForStay) {
  Site site;
  ASSERT_EQ(site.launch({"run.checkpoint_every=2", "run.keep_checkpoints=2", "run.keep_every=12",
                         "network.heartbeat=50ms", "network.emulate.rtt=150ms"})
                .status,
            0)
      << site.logs();
  for (const auto* replica : {"replica-0", "replica-1"}) {
    for (const auto step : {12, 24, 36, 38, 40})
      EXPECT_TRUE(std::filesystem::exists(site.run() / replica / checkpoint_name(step))) << step;
    for (const auto step : {2, 4, 6, 8, 10, 14})
      EXPECT_FALSE(std::filesystem::exists(site.run() / replica / checkpoint_name(step))) << step;
  }
}

/// Resumes until a view has this many replicas, stops the run and returns the output.
std::string resume_until_all_are_in(Site& site, std::size_t replicas, const Words& settings) {
  auto words = with_settings({"launch", "--resume", site.run().string()}, settings);
  // Without a step limit: a replica alone makes a thousand steps per second.
  words = with_settings(words, {"run.stop_after=0", "run.steps=1000000", "run.eval_every=0",
                                "outer.max_local_rounds=1000", "run.stop_grace=60s"});
  auto launch = site.start(words);
  const auto all_in = "begins with " + std::to_string(replicas) + " replicas";
  EXPECT_TRUE(eventually([&] {
    return launch.output().find(all_in) != std::string::npos || !launch.running();
  })) << site.logs();
  launch.signal(SIGINT);
  const auto end = launch.wait();
  EXPECT_EQ(end.status, 130) << end.report() << site.logs();
  EXPECT_EQ(site.summary()["global_hash"].size(), replicas) << site.logs();
  EXPECT_EQ(site.hash().size(), 64U);
  return end.output;
}

TEST(Resume, WhoHasLostItsDiskTakesTheStateFromTheOthers) {
  Site site;
  expect_stopped_at(site, 24, site.launch({"run.stop_after=24"}));
  std::filesystem::remove_all(site.run() / "replica-1");
  const auto output = resume_until_all_are_in(site, 2, {});
  EXPECT_THAT(output,
              HasSubstr("replica-1 lacks the checkpoint of step 24: it copies the state from the others"));
}

TEST(Resume, AReplicaThatWasAbsentTakesTheStateFromTheOthers) {
  Site site;
  expect_stopped_at(site, 6, site.launch({"run.stop_after=6"}));
  const auto its = site.run() / "replica-1" / "checkpoints", kept = site / "kept";
  std::filesystem::copy(its, kept);
  expect_stopped_at(site, 24, site.resume({"run.stop_after=24"}));
  std::filesystem::remove_all(its);
  std::filesystem::rename(kept, its);
  // Later the others delete the checkpoint that all of them had.
  ASSERT_TRUE(std::filesystem::remove(site.run() / "replica-0" / checkpoint_name(6)));
  const auto output = resume_until_all_are_in(site, 2, {});
  EXPECT_THAT(output, HasSubstr("resuming from the checkpoint of step 24"));
  EXPECT_THAT(output,
              HasSubstr("replica-1 lacks the checkpoint of step 24: it copies the state from the others"));
}

TEST(Resume, WithAnotherNumberOfReplicasItSaysWhatChanges) {
  for (const std::size_t replicas : {1, 3}) {
    Site site;
    expect_stopped_at(site, 24, site.launch({"run.stop_after=24"}));
    const auto number = std::to_string(replicas);
    EXPECT_THAT(resume_until_all_are_in(site, replicas, {"replicas=" + number}),
                HasSubstr("resuming from the checkpoint of step 24"));
    EXPECT_THAT(read_all(site.run() / "replica-0" / "worker.log"),
                HasSubstr("the checkpoint is of a run with replicas 2, and this run has " + number));
  }
}

TEST(Resume, KilledAgainAndAgainARunEndsAsOneThatWasNot) {
  Site site;
  // The round trips make the run last for seconds after the second kill, even if this process is woken late.
  const Words slowly = {"run.checkpoint_every=1", "network.emulate.rtt=200ms"};
  std::minstd_rand random(5);
  int kills = 0;
  for (int run = 0; run < 20; ++run) {
    const bool begun = site.has_checkpoint("replica-0") && site.has_checkpoint("replica-1");
    auto words =
        begun ? Words{"launch", "--resume", site.run().string()} : Words{"launch", site.config().string()};
    auto launch = site.start(with_settings(words, slowly));
    const auto enough = site.metric_lines() + 3 + random() % 4;
    ASSERT_TRUE(eventually([&] { return site.metric_lines() >= enough || !launch.running(); }))
        << site.logs();
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 200));
    if (!launch.running()) break;
    launch.signal(SIGKILL);
    static_cast<void>(launch.wait());
    ASSERT_TRUE(eventually([&] { return site.processes().empty(); }));
    ++kills;
  }
  EXPECT_GT(kills, 1);
  expect_reference(site, site.resume({"network.emulate.rtt=0"}));
}

TEST(Resume, OnAFullDiskTrainingGoesOnAndSaysSo) {
  Site site;
  // The limit for all files: less than a checkpoint, more than any other file.
  constexpr auto limit = "ulimit -f 400; trap '' XFSZ; exec \"$@\"";
  auto words = with_settings({"sh", "-c", limit, "sh", isthmus_program, "launch", site.config().string()},
                             {"run.checkpoint_every=5", "run.trace_steps=0"});
  words.front() = "/bin/sh";
  const auto result = run_command(words, site / "full.log");
  EXPECT_THAT(result.output, HasSubstr("replica-1 failed with exit status 3"))
      << "its last checkpoint is missing";
  EXPECT_EQ(site.hash(), reference().hash) << result.report() << site.logs();
  for (const auto* replica : {"replica-0", "replica-1"}) {
    const auto log = read_all(site.run() / replica / "worker.log");
    EXPECT_THAT(log, HasSubstr("NO CHECKPOINT of step 5: cannot write"));
    EXPECT_THAT(log, HasSubstr("the run has ended, but its last checkpoint is not on disk"));
    EXPECT_TRUE(std::filesystem::is_empty(site.run() / replica / "checkpoints"));
  }
}

TEST(Resume, FindsARunFolderThatWasMovedAndRenamed) {
  Site site;
  expect_stopped_at(site, 6, site.launch({"run.stop_after=6"}));
  std::filesystem::rename(site.run(), site / "elsewhere");
  const auto end =
      site.isthmus({"launch", "--resume", (site / "elsewhere").string() + "/", "--set", "run.stop_after=0"});
  ASSERT_EQ(end.status, 0) << end.report() << site.logs();
  EXPECT_THAT(read_all(site / "elsewhere/summary.json"), HasSubstr(reference().hash));
  EXPECT_FALSE(std::filesystem::exists(site.run()));
}

}  // namespace
}  // namespace isthmus
