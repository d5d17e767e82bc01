// Replicas with ranks on several machines, which here are two addresses of loopback. Rank 0 reaches the other
// machine by a program that starts isthmus there, or by a real ssh server.

#include <unistd.h>
#include <chrono>
#include <csignal>
#include <thread>

#include "elastic_run.h"
#include "sshd.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Words on_two_machines(const Words& more = {}) {
  Words settings = {"replicas=1", "replica.ranks=2", "replica.machines=\"127.0.0.1, 127.0.0.2\"",
                    std::string("replica.reach=env MACHINE={machine} ") + isthmus_program};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::string ssh_to(const Sshd& server) { return "replica.reach=" + server.command() + " " + isthmus_program; }

TEST(RanksOnMachines, TrainAsOnOne) {
  Site one, two;
  ASSERT_EQ(one.launch({"replicas=1", "replica.ranks=2"}).status, 0) << one.logs();
  const auto result = two.launch(on_two_machines());
  ASSERT_EQ(result.status, 0) << result.report() << two.logs();
  EXPECT_EQ(two.hash(), one.hash());
}

TEST(RanksOnMachines, ShareSequencesAndAverageParametersAsOnOne) {
  for (const std::string setting : {"replica.ranks_per_sequence=2", "replica.average_every=4"}) {
    Site one, two;
    ASSERT_EQ(one.launch({"replicas=1", "replica.ranks=2", setting}).status, 0) << setting << one.logs();
    const auto result = two.launch(on_two_machines({setting}));
    ASSERT_EQ(result.status, 0) << setting << result.report() << two.logs();
    EXPECT_EQ(two.hash(), one.hash()) << setting;
  }
}

TEST(RanksOnMachines, AreReachedBySsh) {
  std::string why;
  const auto* sshd = shared_sshd(why);
  if (sshd == nullptr) GTEST_SKIP() << why;
  Site one, two;
  ASSERT_EQ(one.launch({"replica.ranks=2", "replicas=1"}).status, 0) << one.logs();
  const auto result = two.launch(on_two_machines({ssh_to(*sshd)}));
  ASSERT_EQ(result.status, 0) << result.report() << two.logs();
  EXPECT_EQ(two.summary()["global_hash"], one.summary()["global_hash"]);
}

TEST(RanksOnMachines, DoctorTriesToReachThem) {
  Site site;
  const auto doctor = [&](const Words& more = {}) {
    return site.isthmus(with_settings({"doctor", site.config().string()}, on_two_machines(more)));
  };
  const auto good = doctor();
  EXPECT_EQ(good.status, 0) << good.report();
  EXPECT_THAT(good.output, HasSubstr("ranks"));
  const auto other = site.write("other", "#!/bin/sh\necho isthmus 0.1.0\necho 'commit     0123456789ab'\n");
  std::filesystem::permissions(other, std::filesystem::perms::owner_all);
  const auto unlike = doctor({"replica.reach=env MACHINE={machine} " + other.string()});
  EXPECT_EQ(unlike.status, 4) << unlike.report();
  EXPECT_THAT(unlike.output, HasSubstr("127.0.0.2 has isthmus of commit 0123456789ab"));
  const auto failing = doctor({"replica.reach=/bin/false {machine}"});
  EXPECT_EQ(failing.status, 4) << failing.report();
  EXPECT_THAT(failing.output, HasSubstr("127.0.0.2: `/bin/false 127.0.0.2 --version` ended with"));
  const auto elsewhere = doctor({"replica.machines=\"192.0.2.1, 127.0.0.2\""});
  EXPECT_EQ(elsewhere.status, 4) << elsewhere.report();
  EXPECT_THAT(elsewhere.output, HasSubstr("192.0.2.1"));
}

/// Two replicas of one rank each, and one of two ranks on two machines.
class LostRankElsewhere : public ::testing::Test {
 protected:
  void start(const Words& more = {}) {
    run_.start({"eu-1", "us-1"});
    auto settings = on_two_machines(more);
    settings.emplace_back("replicas=3");
    run_.add(name_, with_settings({}, settings));
    ASSERT_TRUE(run_.reaches(name_, 15)) << run_.logs();
  }
  void expect_others_go_on() {
    const auto now = run_.metrics("eu-1").back().value("step", std::uint64_t{0});
    EXPECT_TRUE(run_.reaches("eu-1", now + 30) && run_.reaches("us-1", now + 30)) << run_.logs();
    run_.stop();
  }
  /// Rank 1, also behind ssh.
  [[nodiscard]] std::vector<RunningProcess> ranks() const {
    return processes_with("rank --folder " + name_ + " ");
  }

  std::string name_ = "zz-" + std::to_string(getpid());  // the machine may have those of another test
  ElasticRun run_{{"replicas=3", "run.steps=1000000", "inner.schedule=constant"}};
};

TEST_F(LostRankElsewhere, TakesItsReplicaOutAndIsNamed) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(ranks().size(), 1U);
  kill(ranks().front().pid, SIGKILL);
  const auto end = run_.end_of(name_);
  EXPECT_EQ(end.status, 4) << end.report();
  EXPECT_THAT(end.output, HasSubstr("isthmus: rank 1 of " + name_ + " on 127.0.0.2 was killed by signal 9"));
  expect_others_go_on();
}

TEST_F(LostRankElsewhere, EndsWhenRank0IsKilledAlsoBehindSsh) {
  std::string why;
  const auto* sshd = shared_sshd(why);
  if (sshd == nullptr) GTEST_SKIP() << why;
  ASSERT_NO_FATAL_FAILURE(start({ssh_to(*sshd)}));
  ASSERT_FALSE(ranks().empty());
  run_.kill(name_);
  EXPECT_TRUE(eventually([this] { return ranks().empty(); }));
  expect_others_go_on();
}

TEST(RanksOnMachines, ARankEndsIfRank0IsSilent) {
  Site site;
  // The other end stays open, but nothing comes, as from a machine without power.
  const auto script = "mkfifo " + (site / "silent").string() + " && exec 3<>" + (site / "silent").string() +
                      " && exec " + isthmus_program + " rank --folder eu-1 --rank 1 --silence 1 <&3";
  const auto result = Command({"/bin/sh", "-c", script}, site / "rank.log").wait();
  EXPECT_EQ(result.status, 4) << result.report();
}

/// Rank 0 sends no orders while it waits for other members, but shows that it is there.
TEST(RanksOnMachines, ARankStaysWhileItsReplicaWaits) {
  ElasticRun run({"replicas=2"});
  const auto impatient = run.site().write("impatient", "#!/bin/sh\nexec \"$@\" --silence 20\n");
  std::filesystem::permissions(impatient, std::filesystem::perms::owner_all);
  run.start({});
  const auto reach = "replica.reach=" + impatient.string() + " env M={machine} " + isthmus_program;
  run.add("eu-1", with_settings({}, on_two_machines({reach, "replicas=2"})));
  std::this_thread::sleep_for(std::chrono::seconds(32));  // longer than its patience
  run.add("us-1");
  EXPECT_TRUE(run.reaches("us-1", 20)) << run.logs();
  run.finish();
}

TEST(RanksOnMachines, AMachineThatCannotBeReachedIsNamed) {
  Site site;
  const auto result = site.launch(on_two_machines({"replica.reach=false {machine}"}));
  EXPECT_EQ(result.status, 4) << result.report();
  EXPECT_THAT(result.output + site.logs(),
              HasSubstr("rank 1 of replica-0 on 127.0.0.2 ended with exit status 1"));
  const auto absent = site.launch(on_two_machines({"replica.reach=no-such-program {machine}"}));
  EXPECT_EQ(absent.status, 2);
  EXPECT_THAT(absent.output + site.logs(),
              HasSubstr("does `no-such-program 127.0.0.2 --version` (replica.reach)"));
}

TEST(RanksOnMachines, AShellThatPrintsIsNamed) {
  Site site;
  const auto greets = site.write("greets", "#!/bin/sh\necho Welcome to this machine\nexec \"$@\"\n");
  std::filesystem::permissions(greets, std::filesystem::perms::owner_all);
  const auto result = site.launch(
      on_two_machines({"replica.reach=" + greets.string() + " env M={machine} " + isthmus_program}));
  EXPECT_EQ(result.status, 2) << result.report();
  EXPECT_THAT(result.output + site.logs(),
              HasSubstr("rank 1 of replica-0 on 127.0.0.2 sent 'Welcome ' instead of an answer"));
}

TEST(RanksOnMachines, AListIsAsGoodAsTextAndEachReplicaNeedsItsOwn) {
  Site site;
  const std::string machines = "ranks: 2, machines: [10.0.0.1, 10.0.0.2]}\n";
  const auto one = site.write("one.yaml", "extends: tiny.yaml\nreplicas: 1\nreplica: {" + machines);
  const auto shown = site.isthmus({"config", one.string()});
  EXPECT_EQ(shown.status, 0) << shown.report();
  EXPECT_THAT(shown.output, HasSubstr("10.0.0.1, 10.0.0.2"));
  const auto refusal = [&](const std::filesystem::path& config, const std::string& key) {
    const auto result = site.isthmus({"launch", config.string()});
    EXPECT_EQ(result.status, 2) << result.report();
    EXPECT_THAT(result.output, HasSubstr(key + " is 2 and replica.machines is 10.0.0.1, 10.0.0.2"));
  };
  refusal(site.write("two.yaml", "extends: one.yaml\nreplicas: 2\n"), "replicas");
  refusal(site.write("sites.yaml",
                     "extends: tiny.yaml\nsites:\n  eu:\n    replicas: 2\n    replica: {" + machines),
          "sites.eu.replicas");
}

TEST(RanksOnMachines, TheFirstIsTheWorkersOwn) {
  Site site;
  const auto result = site.launch(on_two_machines({"replica.machines=\"192.0.2.7,127.0.0.2\""}));
  EXPECT_NE(result.status, 0) << result.report();
  EXPECT_THAT(result.output + site.logs(),
              AllOf(HasSubstr("replica.machines begins with 192.0.2.7"), HasSubstr("cannot listen there")));
}

TEST(RanksOnMachines, AnotherBuildIsRefused) {
  Site site;
  const auto script = std::string("printf '\\005\\0\\0\\0\\0\\0\\0\\0other' | ") + isthmus_program +
                      " rank --folder eu-1 --rank 2";
  const auto result = Command({"/bin/sh", "-c", script}, site / "rank.log").wait();
  EXPECT_EQ(result.status, 2) << result.report();
  EXPECT_THAT(result.output, AllOf(HasSubstr("eu-1 rank 2"), HasSubstr("rank 0 has build other")));
}

}  // namespace
}  // namespace isthmus
