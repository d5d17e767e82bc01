// Runs with workers that `launch` starts by SSH over loopback: they train like local ones and outlive a
// broken connection and a killed launch, but not a Ctrl-C.

#include <csignal>

#include "site.h"
#include "sshd.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const Words endless = {"run.steps=1000000", "inner.schedule=constant", "run.eval_every=0"};

class Ssh : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    sshd_ = shared_sshd(why);
    if (sshd_ == nullptr) GTEST_SKIP() << why;
    config_ = site_.write("ssh.yaml", "extends: tiny.yaml\nsites:\n  eu: {" + launcher("eu") + "}\n  us: {" +
                                          launcher("us") + "}\n");
  }
  [[nodiscard]] std::string launcher(const std::string& name, const std::string& more = {}) const {
    return sshd_->launcher(isthmus_program, site_ / name, more);
  }
  [[nodiscard]] Command start(const Words& settings, const Words& flags = {}) {
    Words words = {"launch", config_.string()};
    words.insert(words.end(), flags.begin(), flags.end());
    return site_.start(with_settings(std::move(words), settings));
  }
  [[nodiscard]] static Words both(Words a, const Words& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  [[nodiscard]] std::size_t steps(const std::string& name) const {
    const auto text = read_all(site_ / name / "tiny" / name / "metrics.jsonl");
    return static_cast<std::size_t>(std::ranges::count(text, '\n'));
  }
  /// Blocks until both have made `more` further steps.
  [[nodiscard]] bool both_go_on(std::size_t more = 5) const {
    const auto eu = steps("eu"), us = steps("us");
    return eventually([&] { return steps("eu") > eu + more && steps("us") > us + more; });
  }
  [[nodiscard]] pid_t worker(const std::string& name) const {
    return site_.process("worker --quiet --config " + (site_ / name).string());
  }

  void stop(Command& launch) const {
    launch.signal(SIGINT);
    const auto result = launch.wait();
    EXPECT_EQ(result.status, 130) << result.report() << site_.logs();
    EXPECT_THAT(site_.processes(), IsEmpty());
  }
  /// The launch's ssh process for a site.
  [[nodiscard]] pid_t connection(const std::string& name) const {
    std::string seen;
    for (const auto& process : processes_with((site_ / name).string())) {
      if (process.command.starts_with("ssh ")) return process.pid;
      seen += process.command + "\n";
    }
    ADD_FAILURE() << "no ssh to " << name << "no ssh process for " << seen;
    return nobody;
  }

  Site site_;
  const Sshd* sshd_ = nullptr;
  std::filesystem::path config_;
};

TEST_F(Ssh, TrainsAsOnOneMachineWithItsOwnCertificatesThere) {
  const auto certs = (site_ / "certs").string();
  ASSERT_EQ(site_.isthmus({"certs", "init", "tiny", "--dir", certs}).status, 0);
  for (const auto* name : {"coordinator", "eu", "us"})
    ASSERT_EQ(site_.isthmus({"certs", "issue", "tiny", name, "--dir", certs}).status, 0);
  auto launch = start({"network.certs=" + certs + "/tiny"}, {"--json"});
  const auto result = launch.wait();
  ASSERT_EQ(result.status, 0) << result.report() << site_.logs();
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("eu | done: global hash " + site_.hash()), HasSubstr("us | done: ")));
  const auto json = nlohmann::json::parse(result.output.substr(result.output.rfind("\n{\n")), nullptr, false);
  ASSERT_TRUE(json.is_object()) << result.report();
  EXPECT_EQ(json["processes"]["us"]["site"], "us");
  EXPECT_EQ(json["summary"]["steps"], 40);
  const auto there = site_ / "eu/tiny";
  EXPECT_THAT(read_all(there / "eu.yaml"),
              AllOf(Not(HasSubstr("ssh:")), HasSubstr((there / "certs").string())));
  EXPECT_TRUE(std::filesystem::exists(there / "certs/eu/cert.pem"));
  EXPECT_FALSE(std::filesystem::exists(there / "certs/us")) << "another site's certificate";
  EXPECT_FALSE(std::filesystem::exists(there / "certs/coordinator"));
  const auto local =
      site_.write("local.yaml", "extends: tiny.yaml\nsites: {eu: {replicas: 1}, us: {replicas: 1}}\n");
  const auto hash = site_.hash();
  ASSERT_EQ(site_.isthmus({"launch", local.string()}).status, 0);
  EXPECT_EQ(site_.hash(), hash);
}

TEST_F(Ssh, TheCoordinatorMayStandAtASiteAndItsSummaryComesHere) {
  config_ = site_.write("there.yaml", "extends: tiny.yaml\nsites:\n  eu: {" +
                                          launcher("eu", "coordinator: true") + "}\n  us: {replicas: 1}\n");
  const auto result = start({}).wait();
  ASSERT_EQ(result.status, 0) << result.report() << site_.logs();
  EXPECT_THAT(result.output, AllOf(HasSubstr("coordinator of 'tiny' listens"),
                                   Not(HasSubstr("| coordinator of")), HasSubstr("equal on all replicas")));
  EXPECT_EQ(site_.hash().size(), 64U);
}

TEST_F(Ssh, AWorkerOutlivesItsConnectionWhichComesBack) {
  auto launch = start(endless);
  ASSERT_TRUE(both_go_on()) << site_.logs();
  const auto before = worker("us");
  kill(connection("us"), SIGKILL);
  const auto says = [&](const std::string& text) {
    return eventually([&] { return launch.output().find(text) != std::string::npos; });
  };
  EXPECT_TRUE(says("us | is away (" + sshd_->user_at_host() + "): ")) << launch.output();
  EXPECT_TRUE(says("us | is back (" + sshd_->user_at_host() + ")")) << launch.output();
  EXPECT_TRUE(both_go_on()) << launch.output() << site_.logs();
  EXPECT_EQ(worker("us"), before);
  kill(before, SIGKILL);  // the new connection reports its end
  EXPECT_TRUE(says("us was killed by signal 9; restarting it")) << launch.output();
  EXPECT_TRUE(both_go_on()) << launch.output() << site_.logs();
  stop(launch);
}

/// Slow enough to be interfered with, but over soon.
const Words slow = {"network.emulate.rtt=150ms", "run.stop_grace=60s"};

TEST_F(Ssh, ARunGoesOnWithoutItsLaunchAndIsTakenUp) {
  auto launch = start(endless);
  ASSERT_TRUE(both_go_on()) << site_.logs();
  const auto eu = worker("eu"), us = worker("us");
  launch.signal(SIGKILL);
  static_cast<void>(launch.wait());
  EXPECT_TRUE(both_go_on()) << "without launch and coordinator" << site_.logs();
  const auto fresh = start(endless).wait();
  EXPECT_EQ(fresh.status, 3) << fresh.report();
  EXPECT_THAT(fresh.output,
              HasSubstr("the run is in progress there; take it over with `isthmus launch --resume"));
  auto again = site_.start({"launch", "--resume", site_.run().string()});
  EXPECT_TRUE(eventually([&] {
    return again.output().find("tiny is in progress; taking it over") != std::string::npos;
  })) << again.output();
  EXPECT_TRUE(eventually([&] {
    return again.output().find("begins with 2 replicas: eu, us") != std::string::npos;
  })) << again.output();
  EXPECT_TRUE(both_go_on()) << again.output() << site_.logs();
  EXPECT_EQ(worker("eu"), eu);
  EXPECT_EQ(worker("us"), us);
  stop(again);
  EXPECT_EQ(site_.summary()["stopped"], true);
  EXPECT_EQ(site_.hash().size(), 64U) << "the hash must be equal on both";
}

/// The launch that takes over the run has not started the site's worker itself.
TEST_F(Ssh, AWorkerOfARunThatIsTakenUpIsStartedAgainWhileItsSiteIsAway) {
  auto launch = start(endless);
  ASSERT_TRUE(both_go_on()) << site_.logs();
  launch.signal(SIGKILL);
  static_cast<void>(launch.wait());
  auto again = site_.start({"launch", "--resume", site_.run().string()});
  const auto says = [&](const std::string& text) {
    return eventually([&] { return again.output().find(text) != std::string::npos; });
  };
  ASSERT_TRUE(says("begins with 2 replicas: eu, us")) << again.output();
  const auto before = worker("eu");
  kill(connection("eu"), SIGKILL);
  kill(before, SIGKILL);  // the next connection reports its end, or the agent restarts it
  ASSERT_TRUE(says("eu | is back")) << again.output();
  EXPECT_TRUE(both_go_on()) << again.output() << site_.logs();
  EXPECT_THAT(again.output(), Not(HasSubstr("cannot read")));
  stop(again);
}

TEST_F(Ssh, ACoordinatorAtASiteGoesOnToo) {
  config_ =
      site_.write("there.yaml", "extends: tiny.yaml\nsites:\n  eu: {" + launcher("eu", "coordinator: true") +
                                    "}\n  us: {" + launcher("us") + "}\n");
  auto launch = start(slow);
  ASSERT_TRUE(eventually([&] { return steps("eu") > 6 && steps("us") > 6; })) << site_.logs();
  launch.signal(SIGKILL);
  static_cast<void>(launch.wait());
  // Even after the end of the run, its agent reports the result to a new launch.
  ASSERT_TRUE(eventually([&] { return !read_all(site_ / "eu/tiny/summary.json").empty(); })) << site_.logs();
  const auto result = site_.isthmus({"launch", "--resume", site_.run().string()});
  EXPECT_EQ(result.status, 0) << result.report() << site_.logs();
  EXPECT_EQ(site_.hash(), reference().hash);
  EXPECT_THAT(site_.processes(), IsEmpty());
}

/// As if the machine had been rebooted.
TEST_F(Ssh, ACoordinatorWhoseAgentIsKilledIsStartedAgainThere) {
  config_ =
      site_.write("there.yaml", "extends: tiny.yaml\nsites:\n  eu: {" + launcher("eu", "coordinator: true") +
                                    "}\n  us: {" + launcher("us") + "}\n");
  auto launch = start(both(endless, {"network.detect_timeout=5s"}));  // it waits this long for eu's lease
  ASSERT_TRUE(both_go_on()) << site_.logs();
  const auto us = worker("us");
  for (const auto& process : processes_with("tether --folder " + (site_ / "eu").string())) {
    if (process.command.find("--started-fd") != std::string::npos) kill(process.pid, SIGKILL);
  }
  EXPECT_TRUE(eventually([&] { return launch.output().find("restarting it") != std::string::npos; }))
      << launch.output();
  EXPECT_TRUE(both_go_on()) << launch.output() << site_.logs();
  EXPECT_EQ(worker("us"), us) << launch.output();
  stop(launch);
}

TEST_F(Ssh, ASiteGivesUpAfterSoMuchSilence) {
  config_ =
      site_.write("short.yaml", "extends: tiny.yaml\nlaunch.silence: 10s\nsites:\n  eu: {" +
                                    launcher("eu", "silence: 3s") + "}\n  us: {" + launcher("us") + "}\n");
  auto launch = start(both(endless, {"run.stop_grace=10s"}));
  ASSERT_TRUE(both_go_on()) << site_.logs();
  EXPECT_THAT(
      processes_with("tether --folder " + (site_ / "eu").string()),
      AllOf(Not(IsEmpty()), Each(Field(&RunningProcess::command, HasSubstr("--silence 3 --grace 10")))));
  launch.signal(SIGKILL);
  static_cast<void>(launch.wait());
  EXPECT_TRUE(eventually([&] { return processes_with((site_ / "eu").string()).empty(); }));
  EXPECT_TRUE(eventually([&] { return site_.processes().empty(); }));
}

TEST_F(Ssh, AWorkerWithoutOneOfItsRanksIsStartedAgain) {
  auto launch = start(both(endless, {"run.restarts=1", "sites.us.replica.ranks=2"}));
  ASSERT_TRUE(both_go_on()) << site_.logs();
  kill(site_.process("us --rank 1"), SIGKILL);
  EXPECT_TRUE(eventually([&] {
    return launch.output().find("us ended with exit status 4; restarting it") != std::string::npos;
  })) << launch.output();
  EXPECT_TRUE(both_go_on()) << launch.output() << site_.logs();
  launch.signal(SIGINT);
  EXPECT_EQ(launch.wait().status, 130) << site_.logs();
}

TEST_F(Ssh, ADetachedLaunchIsLookedAtLeftAndStopped) {
  const auto detached = start(endless, {"--detach"}).wait();
  ASSERT_EQ(detached.status, 0) << detached.report() << site_.logs();
  EXPECT_THAT(detached.output, HasSubstr("isthmus attach --stop " + site_.run().string()));
  ASSERT_TRUE(both_go_on()) << site_.logs();
  const auto state = nlohmann::json::parse(read_all(site_.run() / "launch.json"));
  kill(state["pid"].get<pid_t>(), SIGHUP);  // as if its terminal was gone
  auto first = site_.start({"attach", site_.run().string()});
  EXPECT_TRUE(eventually([&] { return first.output().find("eu | member 1 of 2") != std::string::npos; }))
      << first.output();
  first.signal(SIGINT);
  const auto left = first.wait();
  EXPECT_EQ(left.status, 0) << left.report();
  EXPECT_THAT(left.output, HasSubstr("tiny continues\n"));
  ASSERT_TRUE(both_go_on()) << site_.logs();
  const auto stopped = site_.isthmus({"attach", "--stop", site_.run().string()});
  EXPECT_EQ(stopped.status, 0) << stopped.report();
  EXPECT_THAT(stopped.output,
              AllOf(HasSubstr("tiny has ended with exit status 130"), Not(HasSubstr("eu | member 1 of 2"))))
      << "output that was shown before must not be shown again";
  EXPECT_THAT(site_.processes(), IsEmpty());
  const auto again = site_.isthmus({"attach", site_.run().string()});
  EXPECT_EQ(again.status, 130) << again.report();
}

TEST(Detached, ProcessesOfThisMachineOutliveTheLaunch) {
  Site site;
  const auto detached = site.isthmus(with_settings({"launch", "--detach", site.config().string()},
                                                   {"network.emulate.rtt=150ms", "run.stop_grace=60s"}));
  ASSERT_EQ(detached.status, 0) << detached.report() << site.logs();
  ASSERT_TRUE(eventually([&] {
    return site.metric_lines("replica-0") > 6 && site.metric_lines("replica-1") > 6;
  })) << site.logs();
  for (const auto& second : {site.launch(), site.resume()}) {
    EXPECT_EQ(second.status, 2) << second.report();
    EXPECT_THAT(second.output,
                AllOf(HasSubstr("is in progress under a detached launch"),
                      HasSubstr("or stop it with isthmus attach --stop " + site.run().string())));
  }
  const auto worker = site.process("--name replica-1");
  const auto state = nlohmann::json::parse(read_all(site.run() / "launch.json"));
  kill(state["pid"].get<pid_t>(), SIGKILL);
  const auto attached = site.isthmus({"attach", site.run().string()});
  EXPECT_EQ(attached.status, 4);
  EXPECT_THAT(attached.output, HasSubstr("isthmus ctl stop " + site.run().string()));
  const auto status = site.isthmus({"ctl", "status", site.run().string()});
  EXPECT_EQ(status.status, 0) << "the run's folder has the address and the secret: " << status.report();
  const auto lines = site.metric_lines("replica-1");
  EXPECT_TRUE(eventually([&] { return site.metric_lines("replica-1") > lines + 2; })) << site.logs();
  EXPECT_EQ(site.process("--name replica-1"), worker);
  const auto fresh = site.launch();
  EXPECT_EQ(fresh.status, 2) << fresh.report();
  EXPECT_THAT(fresh.output, HasSubstr("is in progress: its launch was lost, but its processes continue"));
  const auto end = site.resume();
  EXPECT_EQ(end.status, 0) << end.report() << site.logs();
  EXPECT_THAT(end.output, HasSubstr("tiny is in progress; taking it over"));
  EXPECT_EQ(site.hash(), reference().hash);
  EXPECT_THAT(site.processes(), IsEmpty());
}

TEST_F(Ssh, AttachWantsADetachedLaunch) {
  const auto result = site_.isthmus({"attach", (site_ / "nothing").string()});
  EXPECT_EQ(result.status, 2) << result.report();
  EXPECT_THAT(result.output, HasSubstr("has no detached launch"));
}

}  // namespace
}  // namespace isthmus
