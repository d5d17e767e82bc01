// A coordinator that is started again, with its disk or without: which members it waits for.

#include "cluster.h"
#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- scene by scene ----

TEST(Coordinators, OneThatDiesBetweenSealAndNewView) {
  Cluster cluster({"a", "b", "c"});
  cluster.train();
  cluster.contribute({"a"});
  cluster.lost = [](const std::string&, const ControlMessage& message) {
    return std::holds_alternative<NewView>(message);
  };
  cluster.kill("c");  // a and b have sealed and get no view
  cluster.kill_coordinator();
  cluster.lost = [](auto&, auto&) { return false; };
  cluster.contribute({"b"});
  EXPECT_EQ(cluster.round_of("a"), 1U) << "after sealing, no round may commit in the old view";
  const auto given = cluster.disk->number;
  cluster.start_coordinator();
  EXPECT_GT(cluster.coordinator().view(), given) << "a view number must not be used twice";
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b"));
  expect_equal(cluster, {"a", "b"}, 2);
}

TEST(Coordinators, MembersGoOnWithoutOneAndAreTakenOverByTheNext) {
  Cluster cluster({"a", "b", "c"});
  cluster.train();
  cluster.kill_coordinator();
  cluster.train(3);
  expect_equal(cluster, {"a", "b", "c"}, 4);
  cluster.start_coordinator();
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b", "c"));
  cluster.train();
  expect_equal(cluster, {"a", "b", "c"}, 5);
}

TEST(Coordinators, OneWhoseDiskIsLostAsksForRecover) {
  Cluster cluster({"a", "b"});
  cluster.train(2);
  cluster.kill_coordinator();
  cluster.disk.reset();
  cluster.start_coordinator();
  EXPECT_THAT(cluster.view(), IsEmpty());
  EXPECT_TRUE(cluster.was_said("if its disk is lost, start it with --recover"));
  cluster.train();
  expect_equal(cluster, {"a", "b"}, 3);
  cluster.kill_coordinator();
  cluster.start_coordinator(1000);
  cluster.pass(2 * Cluster::detect_timeout);  // it does not know which members to wait for
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b"));
  EXPECT_GT(cluster.coordinator().view(), 1000U) << "the forgotten view numbers were lower";
  cluster.train();
  expect_equal(cluster, {"a", "b"}, 4);
  EXPECT_EQ(cluster.disk->token, cluster.at("a").token) << "only the members know the run's token";
}

TEST(Coordinators, OneThatComesBackWaitsForAnHeir) {
  Cluster cluster({"a", "b"});
  cluster.train();
  cluster.isolate("b");
  cluster.pass(2 * Cluster::detect_timeout);
  cluster.train();
  ASSERT_THAT(cluster.view(), ElementsAre("a"));
  cluster.kill_coordinator();
  cluster.kill("a");
  cluster.heal();
  cluster.start_coordinator();
  cluster.pass(2 * Cluster::detect_timeout);  // it waits for members that may come
  EXPECT_THAT(cluster.view(), IsEmpty()) << "b does not know the rounds that only a had";
  EXPECT_TRUE(cluster.was_said("waiting for a trainer of view 2 (a), because"));
  cluster.kill_coordinator();
  cluster.start_coordinator(1000);
  cluster.pass(2 * Cluster::detect_timeout);
  EXPECT_THAT(cluster.view(), IsEmpty());
  EXPECT_TRUE(cluster.was_said("only 0 of 1 trainers of view 2 are here (missing: a)"));
  cluster.kill_coordinator();
  cluster.given_up = {"a"};
  cluster.start_coordinator(2000);
  cluster.pass(2 * Cluster::detect_timeout);
  EXPECT_THAT(cluster.view(), ElementsAre("b")) << "the operator has given up a for good";
}

// ---- two coordinators ----

/// Only a, one of two trainers, reaches the coordinator that recovers the run.
class Halves : public testing::Test {
 protected:
  void recover(ViewNumber number) {
    cluster.kill_coordinator();
    cluster.start_coordinator(number);
    cluster.pass(2 * Cluster::detect_timeout);
  }
  void SetUp() override {
    cluster.train(2);
    cluster.isolate("b");
  }
  Cluster cluster{{"a", "b"}};
};

TEST_F(Halves, OneWithoutTheStateDoesNotGoOnWithHalf) {
  cluster.disk.reset();
  recover(1000);
  EXPECT_THAT(cluster.view(), IsEmpty()) << "another coordinator may be running with b";
  EXPECT_TRUE(cluster.was_said("only 1 of 2 trainers of view 1 are here (missing: b)"));
  EXPECT_TRUE(cluster.was_said("--recover --give-up b"));
  cluster.heal();
  cluster.reconnect("b");
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b"));
  cluster.train();
  expect_equal(cluster, {"a", "b"}, 3);
}

TEST_F(Halves, AnOperatorMayGiveTheOthersUpByName) {
  cluster.disk.reset();
  cluster.given_up = {"c"};
  recover(1000);
  EXPECT_THAT(cluster.view(), IsEmpty()) << "the missing member is b";
  cluster.given_up = {"b"};
  recover(2000);
  EXPECT_THAT(cluster.view(), ElementsAre("a"));
  cluster.train();
  EXPECT_EQ(cluster.round_of("a"), 3U);
}

TEST_F(Halves, OneWithTheStateGoesOnWithHalf) {
  recover(1000);
  EXPECT_THAT(cluster.view(), ElementsAre("a"));
}

TEST(Majorities, MoreThanHalfNeedNoState) {
  Cluster cluster({"a", "b", "c"});
  cluster.train(2);
  cluster.isolate("c");
  cluster.kill_coordinator();
  cluster.disk.reset();
  cluster.start_coordinator(1000);
  cluster.pass(2 * Cluster::detect_timeout);
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b"));
}

/// The previous coordinator had a longer network.detect_timeout, so members may still act on a lease of that
/// length.
TEST(Leases, OfTheCoordinatorBeforeAreWaitedFor) {
  auto options = CoordinatorHarness::default_options(2);
  options.last = LastView{7,
                          {CoordinatorHarness::hello("a").member, CoordinatorHarness::hello("b").member},
                          options.token,
                          {},
                          30'000'000};
  CoordinatorHarness run(options);
  auto back = CoordinatorHarness::hello("a");
  back.activated = back.sealed = 7;
  back.token = options.token;
  run.receive(1, back);
  for (Time now = 1s; now <= 31s; now += 1s) {
    run.receive(1, Heartbeat{});
    run.tick(now);
    EXPECT_EQ(run.count<Seal>(1), now < 30s ? 0U : 1U) << now.count();
  }
  auto answer = CoordinatorHarness::sealed();
  answer.view = run.last<Seal>(1)->view;
  answer.activated = 7;
  run.receive(1, answer);
  ASSERT_TRUE(run.stored);
  EXPECT_EQ(run.stored->lease, 5'000'000U) << "the new coordinator's own";
}

TEST(Coordinators, TheFirstViewHadBegunUnheardOf) {
  Cluster cluster({"a", "b"});
  cluster.kill_coordinator();
  // The coordinator does not know that the view had begun at b, because b said hello as a fresh member.
  cluster.kill("b");
  cluster.start_coordinator();
  cluster.pass(2 * Cluster::detect_timeout);
  EXPECT_THAT(cluster.view(), ElementsAre("a"));
  cluster.start("b");
  cluster.learn("b", "a");
  cluster.train();
  expect_equal(cluster, {"a", "b"}, 1);
}

TEST(Coordinators, AFirstViewThatReachedNobodyBeginsAgain) {
  auto options = CoordinatorHarness::default_options(2);
  options.last = LastView{
      1, {CoordinatorHarness::hello("eu-1").member, CoordinatorHarness::hello("us-1").member}, digest_of(99)};
  for (const bool begun : {false, true}) {
    CoordinatorHarness harness(options);
    harness.receive(1, CoordinatorHarness::hello("eu-1"));
    EXPECT_FALSE(harness.last<Seal>(1));
    harness.receive(2, CoordinatorHarness::hello("us-1"));
    ASSERT_TRUE(harness.last<Seal>(1) && harness.last<Seal>(2))
        << "all members of the stored view are here and fresh";
    auto sealed = CoordinatorHarness::sealed();
    sealed.view = harness.last<Seal>(1)->view;
    EXPECT_EQ(sealed.view, 2U);
    harness.receive(1, sealed);
    if (begun) sealed.activated = 1;  // the view began after us-1 had said hello
    harness.receive(2, sealed);
    ASSERT_TRUE(harness.last<NewView>(1)) << "no round can have been made without eu-1";
    EXPECT_EQ(harness.last<NewView>(1)->view.number, 2U);
    EXPECT_EQ(harness.last<NewView>(1)->reference, begun ? 1U : 0U);
    EXPECT_FALSE(harness.last<Admitted>(1));
    EXPECT_FALSE(harness.ended);
  }
}

// ---- without its disk ----

/// Options of a run of two after the coordinator has lost its disk.
CoordinatorOptions recovering() {
  auto options = CoordinatorHarness::default_options(2);
  options.recover = 1000;
  return options;
}

TEST(Recovering, ARunThatNobodyHereHasBegunBeginsAnew) {
  CoordinatorHarness harness(recovering());
  harness.receive(1, CoordinatorHarness::hello("eu-1"));
  harness.receive(2, CoordinatorHarness::hello("us-1"));
  for (const ConnectionId member : {1, 2}) {
    harness.tick(4s);
    harness.receive(member, Heartbeat{});
    EXPECT_FALSE(harness.last<Seal>(member)) << "a member that has begun the run may be on its way";
  }
  harness.tick(6s);
  for (const ConnectionId member : {1, 2}) {
    ASSERT_TRUE(harness.last<Seal>(member));
    auto sealed = CoordinatorHarness::sealed();
    sealed.view = harness.last<Seal>(member)->view;
    EXPECT_GT(sealed.view, 1000U);
    harness.receive(member, sealed);
  }
  ASSERT_TRUE(harness.last<NewView>(1));
  EXPECT_EQ(harness.last<NewView>(1)->token, digest_of(99));
  auto left = CoordinatorHarness::hello("asia-1");
  left.activated = left.sealed = 7;
  left.token = digest_of(5);
  harness.receive(3, left);
  EXPECT_THAT(harness.refusal(3), HasSubstr("has been in another run")) << "its rounds are not this run's";
  EXPECT_FALSE(harness.ended);
}

TEST(Recovering, OneThatHasTakenTheStateMustBeStartedAgain) {
  CoordinatorHarness harness(recovering());
  auto fetcher = CoordinatorHarness::hello("eu-1");
  fetcher.fresh = false;
  harness.receive(1, fetcher);
  harness.tick(4s);
  harness.receive(1, Heartbeat{});
  harness.receive(2, CoordinatorHarness::hello("us-1"));
  harness.tick(6s);
  EXPECT_FALSE(harness.last<Seal>(2));
  ASSERT_TRUE(harness.last<Suspended>(2));
  EXPECT_THAT(harness.last<Suspended>(2)->reason,
              testing::AllOf(HasSubstr("begins anew when exactly 2 newly started replicas"),
                             HasSubstr("start again: eu-1")));
  auto again = CoordinatorHarness::hello("eu-1");
  again.member.incarnation = 2;
  harness.receive(3, again);
  EXPECT_TRUE(harness.last<Seal>(2) && harness.last<Seal>(3));
}

/// us-1, which has begun the run, comes and goes; eu-1, which has not, stays.
void one_with_the_state_comes_and_goes(CoordinatorHarness& harness) {
  harness.receive(1, CoordinatorHarness::hello("eu-1"));
  auto begun = CoordinatorHarness::hello("us-1");
  begun.activated = begun.sealed = 7;
  begun.token = digest_of(5);
  harness.receive(2, begun);
  harness.close(2);
  harness.tick(4s);
  harness.receive(1, Heartbeat{});
  harness.tick(6s);
}

TEST(Recovering, WhoHasBegunIsWhoseRunItIs) {
  CoordinatorHarness harness(recovering());
  one_with_the_state_comes_and_goes(harness);
  harness.receive(3, CoordinatorHarness::hello("us-1"));
  EXPECT_FALSE(harness.last<Seal>(3)) << "it was here with the state and may come back";
}

TEST(Recovering, WhoWasHereWithTheStateAndIsStartedAgainBringsItNoMore) {
  CoordinatorHarness harness(recovering());
  one_with_the_state_comes_and_goes(harness);
  auto again = CoordinatorHarness::hello("us-1");
  again.member.incarnation = 2;
  harness.receive(3, again);
  EXPECT_FALSE(harness.last<Seal>(1)) << "eu-1 was going to copy the state of a member that is gone";
  ASSERT_TRUE(harness.last<Suspended>(3));
  EXPECT_THAT(harness.last<Suspended>(3)->reason, HasSubstr("start again: eu-1"));
  again = CoordinatorHarness::hello("eu-1");
  again.member.incarnation = 2;
  harness.receive(4, again);
  for (const ConnectionId member : {3, 4}) {
    ASSERT_TRUE(harness.last<Seal>(member)) << "there is nothing left to wait for";
    auto sealed = CoordinatorHarness::sealed();
    sealed.view = harness.last<Seal>(member)->view;
    harness.receive(member, sealed);
  }
  ASSERT_TRUE(harness.last<NewView>(3));
  EXPECT_EQ(harness.last<NewView>(3)->token, digest_of(99)) << "this is another run";
}

// ---- with its disk ----

/// Only eu-1 was in the last view, so only eu-1 knows the run's last rounds; us-1 was left out of that view.
TEST(StartedAgain, AViewWhoseOnlyHeirIsLostBeforeItBeginsDoesNotBegin) {
  auto options = CoordinatorHarness::default_options(2);
  options.last = LastView{7, {CoordinatorHarness::hello("eu-1").member}, options.token};
  CoordinatorHarness harness(options);
  const auto comes_back = [&](ConnectionId connection, const std::string& name, ViewNumber begun) {
    auto hello = CoordinatorHarness::hello(name);
    hello.activated = hello.sealed = begun;
    hello.token = options.token;
    harness.receive(connection, hello);
  };
  const auto answers = [&](ConnectionId connection, ViewNumber begun) {
    ASSERT_TRUE(harness.last<Seal>(connection));
    auto sealed = CoordinatorHarness::sealed();
    sealed.view = harness.last<Seal>(connection)->view;
    sealed.activated = begun;
    harness.receive(connection, sealed);
  };
  comes_back(1, "us-1", 6);
  comes_back(2, "eu-1", 7);
  answers(1, 6);
  harness.close(2);
  EXPECT_FALSE(harness.last<NewView>(1)) << "rounds that eu-1 has applied would be lost";
  ASSERT_TRUE(harness.last<Suspended>(1));
  EXPECT_THAT(harness.last<Suspended>(1)->reason, HasSubstr("waiting for the members of the last view"));
  harness.tick(4s);
  harness.receive(1, Heartbeat{});
  comes_back(3, "eu-1", 7);
  answers(1, 6);
  answers(3, 7);
  EXPECT_TRUE(harness.last<NewView>(1) && harness.last<NewView>(3));
}

/// The previous coordinator died between storing the first view and sending it.
TEST(StartedAgain, AFirstViewThatReachedNobodyBeginsWithoutThoseWhoCameLater) {
  auto options = CoordinatorHarness::default_options(2);
  const auto hello = CoordinatorHarness::hello;
  options.last = LastView{1, {hello("eu-1").member, hello("us-1").member}, options.token};
  CoordinatorHarness harness(options);
  harness.receive(1, hello("eu-1"));
  auto later = hello("asia-1");
  later.resume = true;
  harness.receive(2, later);
  harness.receive(3, hello("us-1"));
  EXPECT_TRUE(harness.closed.contains(2)) << "there is no state yet that it could copy";
  harness.receive(4, later);
  EXPECT_TRUE(harness.closed.contains(4));
  harness.seal_all({1, 3});
  ASSERT_TRUE(harness.last<NewView>(1) && harness.last<NewView>(3));
  EXPECT_EQ(harness.last<NewView>(1)->view.members.size(), 2U);
  harness.receive(5, later);
  EXPECT_TRUE(harness.last<Admitted>(5));
  EXPECT_FALSE(harness.last<Refused>(2) || harness.last<Refused>(4)) << "a refused process would end";
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
