// Every run ends promptly, reports the reason and leaves no process behind.

#include <csignal>
#include <fstream>
#include <thread>

#include "site.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

/// Settings that make a run of one second last for several.
const Words slowly = {"network.emulate.rtt=150ms", "run.checkpoint_every=5",
                      "run.stop_grace=60s"};  // for busy test machines

/// A launch during its run: past step 5, with that step's checkpoint on disk.
class MidRun : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto* replica : {"replica-0", "replica-1"}) {
      const auto is_there = [&] { return site.metric_lines(replica) > 6 && site.has_checkpoint(replica); };
      ASSERT_TRUE(eventually([&] { return is_there() || !launch.running(); })) << site.logs();
    }
    ASSERT_TRUE(launch.running()) << launch.wait().report() << site.logs();
  }
  void expect_resumes_to_reference() {
    const auto end = site.resume({"network.emulate.rtt=0"});
    ASSERT_EQ(end.status, 0) << end.report() << site.logs();
    EXPECT_EQ(site.hash(), reference().hash);
  }

  Site site;
  Command launch = site.start_launch(slowly);
};

TEST_F(MidRun, CtrlCStopsAllAtOneStepWithACheckpoint) {
  launch.signal(SIGINT);
  const auto result = launch.wait();
  ASSERT_EQ(result.status, 130) << result.report() << site.logs();
  EXPECT_THAT(site.processes(), SizeIs(0));
  const auto summary = site.summary();
  EXPECT_EQ(summary["stopped"], true);
  const auto step = summary["steps"].get<int>();
  EXPECT_GT(step, 5);
  EXPECT_LT(step, 40);
  for (const auto* replica : {"replica-0", "replica-1"}) {
    const auto digits = std::to_string(step);
    const auto name = "step_" + std::string(12 - digits.size(), '0') + digits + "_replica_0.ckpt";
    EXPECT_TRUE(std::filesystem::exists(site.run() / replica / "checkpoints" / name)) << name;
  }
  expect_resumes_to_reference();
}

TEST_F(MidRun, ASecondCtrlCKills) {
  const auto replica = site.process("--name replica-1");
  ASSERT_EQ(kill(replica, SIGSTOP), 0);  // it cannot stop by itself
  launch.signal(SIGINT);
  ASSERT_TRUE(eventually(
      [&] { return launch.output().find("stopping: asked to by a signal") != std::string::npos; }));
  launch.signal(SIGINT);
  const auto result = launch.wait();
  EXPECT_EQ(result.status, 1) << result.report();
  EXPECT_THAT(result.output, HasSubstr("killing replica-1, which did not end by itself"));
  EXPECT_THAT(site.processes(), SizeIs(0));
}

TEST_F(MidRun, AKilledLaunchTakesAllWithIt) {
  launch.signal(SIGKILL);
  EXPECT_EQ(launch.wait().status, 128 + SIGKILL);
  ASSERT_TRUE(eventually([&] { return site.processes().empty(); })) << site.processes().front().command;
  expect_resumes_to_reference();
}

/// A lost terminal sends SIGHUP to all processes.
TEST_F(MidRun, AHangUpEndsNobody) {
  for (const auto* process : {" coordinator ", "--name replica-0", "--name replica-1"})
    kill(site.process(process), SIGHUP);
  launch.signal(SIGHUP);
  const auto result = launch.wait();
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_EQ(site.hash(), reference().hash);
}

TEST_F(MidRun, AKilledCoordinatorIsStartedAgain) {
  kill(site.process(" coordinator "), SIGKILL);
  const auto result = launch.wait();
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_THAT(result.output, HasSubstr("the coordinator was killed by signal 9; restarting it"));
  EXPECT_THAT(site.processes(), SizeIs(0));
  EXPECT_EQ(site.summary()["steps"], 40);
  EXPECT_THAT(site.summary()["global_hash"], SizeIs(2));
  EXPECT_EQ(site.hash().size(), 64U);
}

/// No process has the run's state any more.
TEST_F(MidRun, WorkersThatAreKilledTogetherGoBackToTheirCheckpoints) {
  const auto first = site.process("--name replica-0"), second = site.process("--name replica-1");
  kill(first, SIGKILL);
  kill(second, SIGKILL);
  const auto result = launch.wait();
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_THAT(result.output, HasSubstr("the run goes back to its checkpoints"));
  EXPECT_THAT(result.output, HasSubstr("resuming from the checkpoint of step "));
  EXPECT_FALSE(std::filesystem::exists(site.run() / "replica-0.1")) << "the checkpoints must stay in place";
  EXPECT_EQ(site.hash(), reference().hash);
}

TEST_F(MidRun, ACoordinatorThatCannotStartIsTriedAgainAndTheWorkersGoOn) {
  const auto state = site.run() / "coordinator.state";
  const auto whole = read_all(state);
  ASSERT_FALSE(whole.empty());
  const auto write = [&](const std::string& bytes) { std::ofstream(state, std::ios::binary) << bytes; };
  kill(site.process(" coordinator "), SIGSTOP);  // it must not use its state while that is damaged
  write("no view");
  kill(site.process(" coordinator "), SIGKILL);
  ASSERT_TRUE(eventually([&] {
    return launch.output().find(
               "the coordinator ended with exit status 3; the workers continue without it") !=
           std::string::npos;
  })) << launch.output();
  write(whole);
  const auto result = launch.wait();
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_THAT(result.output, HasSubstr("is damaged; start the coordinator with --recover"));
  EXPECT_THAT(result.output, HasSubstr("the coordinator ended with exit status 3; restarting it"));
  EXPECT_EQ(site.summary()["steps"], 40);
  EXPECT_EQ(site.hash(), reference().hash);
}

TEST_F(MidRun, ItsFolderIsNobodyElses) {
  const auto second = site.launch();
  EXPECT_EQ(second.status, 2);
  EXPECT_THAT(second.output, HasSubstr("another process is using " + site.run().string()));
  EXPECT_TRUE(launch.running());
  EXPECT_EQ(launch.wait().status, 0) << site.logs();
  EXPECT_EQ(site.hash(), reference().hash);
}

TEST(Stop, AWorkerThatDoesNotStopIsKilledWhenTheGraceIsOver) {
  Site site;
  const auto defaults = site.isthmus({"config", site.config().string()}).output;
  EXPECT_THAT(defaults,
              HasSubstr("stop_grace: 1min"));  // the documented default; a shorter time is enough below
  auto launch = site.start_launch({"network.emulate.rtt=150ms", "run.stop_grace=1s"});
  ASSERT_TRUE(eventually([&] { return site.metric_lines() > 3; })) << site.logs();
  ASSERT_EQ(kill(site.process("--name replica-1"), SIGSTOP), 0);
  launch.signal(SIGINT);
  const auto result = launch.wait();
  EXPECT_EQ(result.status, 1) << result.report();
  EXPECT_THAT(result.output, HasSubstr("killing replica-1, which did not end by itself"));
  EXPECT_THAT(site.processes(), SizeIs(0));
}

TEST(Stop, ASuspendedMachineGoesOnWhereItWas) {
  Site site;
  auto launch = site.start_launch(
      {"network.emulate.rtt=150ms", "network.detect_timeout=5s", "network.heartbeat=200ms"});
  ASSERT_TRUE(eventually([&] { return site.metric_lines() > 3; })) << site.logs();
  const auto all = site.processes();
  for (const auto& process : all) ASSERT_EQ(kill(process.pid, SIGSTOP), 0);
  std::this_thread::sleep_for(7s);  // longer than network.detect_timeout
  for (const auto& process : all) ASSERT_EQ(kill(process.pid, SIGCONT), 0);
  const auto result = launch.wait();
  EXPECT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_EQ(site.hash(), reference().hash);
}

TEST(Stop, TheOthersGoOnWithoutAKilledWorker) {
  Site site;
  auto settings = slowly;
  settings.insert(settings.end(), {"replicas=3", "run.restarts=0"});
  auto launch = site.start_launch(settings);
  ASSERT_TRUE(eventually([&] { return site.metric_lines() > 3; })) << site.logs();
  kill(site.process("--name replica-1"), SIGKILL);
  const auto result = launch.wait();
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  for (const auto* said : {"replica-1 is lost: its connection closed", "replica-1 was killed by signal 9",
                           "replica-1/worker.log", "the others continue; to bring it back: ",
                           "with 2 replicas: replica-0, replica-2"}) {
    EXPECT_THAT(result.output, HasSubstr(said));
  }
  EXPECT_THAT(site.processes(), SizeIs(0));
  EXPECT_EQ(site.summary()["steps"], 40);
  EXPECT_THAT(site.summary()["global_hash"], SizeIs(2));
  EXPECT_EQ(site.hash().size(), 64U);
}

TEST(Stop, AKilledWorkerIsStartedAgainAsOftenAsAskedFor) {
  Site site;
  auto launch =
      site.start_launch({"run.restarts=1", "run.steps=100000", "run.eval_every=0", "run.checkpoint_every=10",
                         "outer.max_local_rounds=1000", "run.stop_grace=60s"});
  ASSERT_TRUE(eventually([&] { return site.metric_lines("replica-0") > 20; })) << site.logs();
  kill(site.process("--name replica-0"), SIGKILL);
  ASSERT_TRUE(eventually([&] {
    // A run this fast may leave a newcomer behind once or twice before it is in a view.
    return launch.output().find("begins with 2 replicas: replica-0, replica-1") != std::string::npos;
  })) << launch.output()
      << site.logs();
  EXPECT_THAT(launch.output(), HasSubstr("replica-0 was killed by signal 9; restarting it"));
  launch.signal(SIGINT);
  const auto result = launch.wait();
  EXPECT_EQ(result.status, 130) << result.report() << site.logs();
  EXPECT_EQ(site.summary()["stopped"], true);
  EXPECT_THAT(site.summary()["global_hash"], SizeIs(2));
  EXPECT_EQ(site.hash().size(), 64U);
  EXPECT_EQ(site.summary()["first_step"], 0) << "replica-1 was there from the start";
  const auto log = read_all(site.run() / "replica-0" / "worker.log");
  EXPECT_FALSE(std::filesystem::exists(site.run() / "replica-0.1"))
      << "the folder with its checkpoints must be kept";
  for (const auto* said : {"member 1 of 2", "takes part from step", "stopped after step "})
    EXPECT_THAT(log, HasSubstr(said)) << "the log must hold both parts of the run, in its usual place";
}

/// Runs `isthmus launch` with standard error redirected like this; to report that it restarts a worker, it
/// has to write there.
void expect_restart_with_standard_error(const std::string& redirection) {
  Site site;
  auto words =
      with_settings({"/bin/bash", "-c", "exec \"$@\" " + redirection, "bash", isthmus_program, "launch",
                     site.config().string()},
                    {"run.restarts=1", "run.steps=100000", "run.eval_every=0", "run.checkpoint_every=10",
                     "outer.max_local_rounds=1000", "run.stop_grace=60s"});
  Command launch(std::move(words), site / "launch.log");
  ASSERT_TRUE(eventually([&] { return site.metric_lines("replica-0") > 20; })) << site.logs();
  kill(site.process("--name replica-0"), SIGKILL);
  ASSERT_TRUE(eventually([&] {
    return launch.output().find("begins with 2 replicas: replica-0, replica-1") != std::string::npos ||
           !launch.running();
  })) << site.logs();
  EXPECT_TRUE(launch.running()) << site.logs();
  launch.signal(SIGINT);
  const auto result = launch.wait();
  EXPECT_EQ(result.status, 130) << result.report() << site.logs();
  EXPECT_THAT(site.summary()["global_hash"], SizeIs(2));
}

TEST(Stop, ALauncherWhoseStandardErrorIsFullStartsAWorkerAgain) {
  expect_restart_with_standard_error("2>/dev/full");
}

TEST(Stop, ALauncherWhoseStandardErrorIsClosedStartsAWorkerAgain) {
  expect_restart_with_standard_error("2>&-");
}

/// Like `isthmus launch 2>&1 | tee` with tee killed.
TEST(Stop, ALauncherWhoseReaderIsGoneStartsAWorkerAgain) { expect_restart_with_standard_error("2> >(:)"); }

TEST(Stop, ASilentWorkerIsALostOneAndDoesNotOutliveTheRun) {
  Site site;
  auto launch = site.start_launch({"network.emulate.rtt=150ms", "network.detect_timeout=5s",
                                   "network.heartbeat=200ms", "run.stop_grace=1s"});
  ASSERT_TRUE(eventually([&] { return site.metric_lines() > 3; })) << site.logs();
  ASSERT_EQ(kill(site.process("--name replica-1"), SIGSTOP), 0);
  const auto result = launch.wait();
  EXPECT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_THAT(result.output, HasSubstr("replica-1 is lost: silent for longer than network.detect_timeout"));
  EXPECT_THAT(result.output, HasSubstr("killing replica-1, which did not end by itself"));
  EXPECT_THAT(site.processes(), SizeIs(0));
  EXPECT_EQ(site.summary()["steps"], 40);
}

TEST(Stop, AKilledWorkerOfTheBaselineEndsTheRunToo) {
  Site site;
  auto launch = site.start_launch({"outer.method=data_parallel", "run.steps=100000", "run.eval_every=0"});
  ASSERT_TRUE(eventually([&] { return site.metric_lines() > 3; })) << site.logs();
  kill(site.process("--name replica-1"), SIGKILL);
  const auto result = launch.wait();
  EXPECT_EQ(result.status, 4) << result.report() << site.logs();
  EXPECT_THAT(result.output, HasSubstr("replica-1 was killed by signal 9"));
  EXPECT_THAT(site.processes(), SizeIs(0));
}

TEST(Stop, CtrlCWhileReplicasStillLoad) {
  Site site;
  auto launch = site.start_launch(slowly);
  std::vector<RunningProcess> loading;
  ASSERT_TRUE(eventually([&] {
    loading = processes_with((site.run() / "config.yaml").string() + " --coordinator");
    return loading.size() == 2;
  }));
  for (const auto& worker : loading) ASSERT_EQ(kill(worker.pid, SIGSTOP), 0);
  ASSERT_TRUE(
      eventually([&] { return launch.output().find("waiting for 2 replicas") != std::string::npos; }));
  launch.signal(SIGINT);
  ASSERT_TRUE(eventually([&] { return launch.output().find("stopping: ") != std::string::npos; }));
  for (const auto& worker : loading) ASSERT_EQ(kill(worker.pid, SIGCONT), 0);
  const auto result = launch.wait();
  EXPECT_EQ(result.status, 130) << result.report() << site.logs();
  EXPECT_THAT(site.processes(), SizeIs(0));
}

}  // namespace
}  // namespace isthmus
