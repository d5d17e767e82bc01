// How the coordinator proceeds when members that may have the run's state are missing: it waits for them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

/// Another coordinator may have been started with --recover among the members missing here.
class Heirs : public testing::Test {
 protected:
  void begin(std::size_t least, bool politely = false) {
    auto options = CoordinatorHarness::default_options(4);
    options.least = least;
    run.emplace(options);
    run->run_all({"a", "b", "c", "d"});
    Heartbeat in_view;
    in_view.view = 1;
    run->receive(1, in_view);
    for (const ConnectionId gone : {2, 3, 4}) {
      if (politely) run->receive(gone, Leave{"its machine is needed"});
      run->close(gone);
    }
  }
  /// Number of views that a was asked to seal for.
  [[nodiscard]] std::size_t seals() const { return run->count<Seal>(1); }
  void join(ConnectionId connection, const std::string& name, std::uint64_t incarnation = 1) {
    auto hello = CoordinatorHarness::hello(name);
    hello.member.incarnation = incarnation;
    run->receive(connection, hello);
    run->receive(connection, Ready{});
  }
  std::optional<CoordinatorHarness> run;
};

TEST_F(Heirs, NewcomersDoNotMakeUpForThoseWhoMayGoOnElsewhere) {
  begin(2);
  const auto before = seals();
  join(5, "e");
  EXPECT_EQ(seals(), before);
  ASSERT_TRUE(run->last<Suspended>(1));
  EXPECT_THAT(run->last<Suspended>(1)->reason, HasSubstr("waiting for b,c,d; if they are gone for good"));
  join(6, "b", 2);
  EXPECT_EQ(seals(), before) << "c and d may have continued elsewhere";
  join(7, "c", 2);
  EXPECT_EQ(seals(), before + 1) << "only a and d may have the state, and a is here";
}

TEST_F(Heirs, WhoHasLeftIsNotWaitedFor) {
  begin(2, true);
  const auto before = seals();
  join(5, "e");
  EXPECT_EQ(seals(), before + 1) << "only a has the state, and no other coordinator can have b, c and d";
}

TEST_F(Heirs, AReasonIsLoggedOnceWhateverLedToIt) {
  begin(2);
  auto reducer = CoordinatorHarness::hello("r");
  reducer.member.kind = MemberKind::reducer;
  run->receive(5, reducer);
  run->close(5);
  EXPECT_THAT(run->said, Contains(HasSubstr("r joined")));
  const auto times = std::ranges::count_if(run->said, [](const std::string& line) {
    return line.find("1 of at least 2 replicas are here") != std::string::npos;
  });
  EXPECT_EQ(times, 1);
}

TEST_F(Heirs, OneIsEnoughWhereFewerMayTrain) {
  begin(1);
  EXPECT_EQ(seals(), 4U) << "for the first view and after each loss";
}

/// The Hello of a member that comes back with the state of view 1.
Hello of_first_view(const std::string& name) {
  auto hello = CoordinatorHarness::hello(name);
  hello.activated = hello.sealed = 1;
  hello.token = digest_of(99);
  return hello;
}

/// The coordinator's machine has lost its network, or all sites have lost power.
TEST(Alone, ACoordinatorWaitsForThoseWhoHaveTheState) {
  CoordinatorHarness run(2);
  run.run_all({"a", "b"});
  run.tick(6s);
  EXPECT_EQ(run.coordinator.members().size(), 0U) << "both are silent";
  run.tick(12h);
  run.tick(24h);
  EXPECT_FALSE(run.ended) << "they train on, and no other coordinator knows the run";
  auto back = of_first_view("a");
  run.receive(3, back);
  EXPECT_FALSE(run.last<Seal>(3)) << "b may have made rounds that a has not received";
  back.member = CoordinatorHarness::hello("b").member;
  run.receive(4, back);
  ASSERT_TRUE(run.last<Seal>(3) && run.last<Seal>(4));
}

/// The members have finished without the coordinator, and one of them has not reported it yet.
TEST(Alone, ACoordinatorHearsAllWhoHaveComeToTheEnd) {
  CoordinatorHarness run(2);
  run.run_all({"a", "b"});
  run.tick(6s);
  auto back = of_first_view("a");
  back.done = true;
  run.receive(3, back);
  run.receive(3, Done{"{}", digest_of(4)});
  EXPECT_FALSE(run.ended) << "b would find no coordinator";
  back.member = CoordinatorHarness::hello("b").member;
  run.receive(4, back);
  run.receive(4, Done{"{}", digest_of(4)});
  ASSERT_TRUE(run.ended);
  EXPECT_EQ(run.ended->how, Ended::How::finished);
}

TEST(Alone, OneThatComesBackAndLeavesEndsNoRunThatTheOtherMayGoOnWith) {
  CoordinatorHarness run(2);
  run.run_all({"a", "b"});
  run.tick(6s);
  run.tick(12h);
  run.tick(24h);
  auto back = of_first_view("a");
  run.receive(3, back);
  run.receive(3, Leave{"asked to"});
  run.tick(48h);
  EXPECT_FALSE(run.ended) << "b trains on";
  back.member = CoordinatorHarness::hello("b").member;
  run.receive(4, back);
  run.tick(48h + 4s);
  run.receive(4, Heartbeat{});
  run.tick(48h + 6s);
  EXPECT_TRUE(run.last<Seal>(4));
}

/// The members go back to their checkpoints, and the coordinator loses them while they restore.
TEST(Alone, ACoordinatorWaitsForThoseWhoRestore) {
  CoordinatorHarness run(2);
  run.run_all({"a", "b"});
  run.close(1);
  run.close(2);
  const auto come = [&](ConnectionId connection, const std::string& name, std::uint64_t incarnation) {
    auto hello = CoordinatorHarness::hello(name);
    hello.member.incarnation = incarnation;
    hello.resume = true;
    hello.checkpoints = {{100, 7}};
    run.receive(connection, hello);
  };
  come(3, "a", 2);
  come(4, "b", 2);
  ASSERT_TRUE(run.last<Seal>(3) && run.last<Seal>(4));
  run.tick(6s);
  run.tick(12h);
  run.tick(24h);
  EXPECT_FALSE(run.ended);
  come(5, "a", 2);
  come(6, "b", 2);
  EXPECT_TRUE(run.last<Seal>(5) && run.last<Seal>(6));
}

TEST(Alone, ACoordinatorThatWaitsForThoseWhoHaveTheStateCanBeStopped) {
  CoordinatorHarness run(2);
  run.run_all({"a", "b"});
  run.tick(6s);
  run.tick(12h);
  run.tick(24h);
  run.stop("enough");
  run.tick(24h + 1s);
  ASSERT_TRUE(run.ended);
  EXPECT_EQ(run.ended->how, Ended::How::stopped);
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
