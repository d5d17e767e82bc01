// A calendar closes the link of a member: the others continue without it, and it comes back.

#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr WallTime monday{std::chrono::sys_days{std::chrono::year{2026} / 11 / 30}};

class Calendars : public ::testing::Test {
 protected:
  static CoordinatorHarness harness() {
    auto options = CoordinatorHarness::default_options(3);
    options.least = 2;
    options.owners_keep_nothing = true;
    return CoordinatorHarness(std::move(options));
  }
  void join(ConnectionId connection, const std::string& name, const std::string& calendar = {}) {
    auto hello = CoordinatorHarness::hello(name);
    hello.calendar = calendar;
    run.receive(connection, hello);
  }
  /// All three are in the first view.
  void begin(const std::string& calendar_of_c) {
    join(1, "a");
    join(2, "b");
    join(3, "c", calendar_of_c);
    for (const ConnectionId member : {1, 2, 3}) run.receive(member, CoordinatorHarness::sealed());
    ASSERT_TRUE(run.last<NewView>(1));
  }
  void follow(WallTime wall) {
    run.coordinator.follow_calendars(wall);
    run.tick(run.now + 100ms);
  }
  [[nodiscard]] std::size_t in_view() const {
    std::size_t count = 0;
    for (const auto& [name, member] : run.coordinator.members())
      count += member.role == Coordinator::Role::member ? 1 : 0;
    return count;
  }

  CoordinatorHarness run = harness();
};

TEST_F(Calendars, OthersContinueWithoutAClosedMember) {
  begin("mon 8:00-18:00 closed");
  follow(monday + 8h - 1s);
  EXPECT_EQ(run.last<Seal>(1)->view, 1U) << "nothing changes before the time";
  follow(monday + 8h);
  EXPECT_THAT(run.said, Contains(HasSubstr("calendar of c: closed until Mon 18:00 UTC")));
  EXPECT_EQ(run.last<Seal>(1)->view, 2U);
  EXPECT_EQ(run.last<Seal>(3)->view, 1U) << "a closed member is not asked to seal";
  run.seal_all({1, 2});
  EXPECT_EQ(run.last<NewView>(1)->view.members.size(), 2U);
  EXPECT_EQ(run.count<NewView>(3), 1U);
  EXPECT_FALSE(run.closed.contains(3)) << "its connection stays";
  follow(monday + 12h);
  EXPECT_EQ(run.last<Seal>(1)->view, 2U) << "a member that stays closed changes nothing";
  follow(monday + 18h);
  EXPECT_THAT(run.said, Contains(HasSubstr("calendar of c: network.rate until Mon 08:00 UTC")));
  EXPECT_EQ(run.last<Seal>(3)->view, 3U);
}

TEST_F(Calendars, TheRunWaitsWhileTooFewLinksAreOpen) {
  join(1, "a", "mon 8:00-18:00 closed");
  join(2, "b", "mon 9:00-17:00 closed");
  join(3, "c");
  for (const ConnectionId member : {1, 2, 3}) run.receive(member, CoordinatorHarness::sealed());
  follow(monday + 8h);
  run.seal_all({2, 3});
  follow(monday + 9h);
  EXPECT_EQ(run.coordinator.run_phase(), RunPhase::suspended);
  EXPECT_THAT(run.coordinator.obstacle(),
              AllOf(HasSubstr("calendar of b: closed until Mon 17:00 UTC"), HasSubstr("1 of at least 2")));
  follow(monday + 17h);
  run.seal_all({2, 3});
  EXPECT_EQ(run.coordinator.run_phase(), RunPhase::running);
  EXPECT_EQ(in_view(), 2U);
  EXPECT_FALSE(run.ended);
}

TEST_F(Calendars, AMemberThatIsClosedAtTheStartLeavesTheFirstView) {
  run.coordinator.follow_calendars(monday + 10h);
  begin("mon 8:00-18:00 closed");
  EXPECT_EQ(in_view(), 3U) << "the first view needs all";
  follow(monday + 10h + 1s);
  run.seal_all({1, 2});
  EXPECT_EQ(in_view(), 2U);
}

TEST_F(Calendars, AReturningMemberIsKnownToBeClosed) {
  begin("mon 8:00-18:00 closed");
  follow(monday + 8h);
  run.seal_all({1, 2});
  run.close(3);
  auto hello = CoordinatorHarness::hello("c");
  hello.calendar = "mon 8:00-18:00 closed";
  hello.activated = 1;
  hello.token = digest_of(99);
  hello.fresh = false;
  const auto views = run.last<Seal>(1)->view;
  run.receive(4, hello);
  EXPECT_EQ(run.last<Seal>(1)->view, views) << "no view change for a member that may not send";
  EXPECT_EQ(run.coordinator.members().count("c"), 1U);
}

TEST_F(Calendars, ANewCalendarAppliesAtOnce) {
  begin("");
  run.coordinator.follow_calendars(monday + 10h);
  run.receive(3, CalendarChanged{"mon closed"});
  EXPECT_THAT(run.said, Contains(HasSubstr("calendar of c: closed until Tue 00:00 UTC")));
  run.seal_all({1, 2});
  run.said.clear();
  run.receive(3, CalendarChanged{""});
  EXPECT_THAT(run.said, Contains(HasSubstr("calendar of c: ")));
  run.receive(1, CalendarChanged{"mon maybe"});
  EXPECT_THAT(run.refusal(1),
              HasSubstr("an invalid calendar: network.calendar: 'mon maybe' ends in 'maybe'"));
}

TEST_F(Calendars, AMemberThatClosesAfterItsAnswerIsNotInTheNextView) {
  begin("mon 8:00-18:00 closed");
  follow(monday + 8h);
  run.seal_all({1, 2});
  follow(monday + 18h);
  run.seal_all({1, 3});  // b has not answered yet
  follow(monday + std::chrono::days(7) + 8h);
  run.seal_all({1, 2});
  EXPECT_EQ(run.last<NewView>(1)->view.members.size(), 2U);
  EXPECT_EQ(in_view(), 2U);
}

TEST_F(Calendars, AStopEndsARunWhoseLinksAreAllClosed) {
  begin("closed");
  Heartbeat beat;
  beat.view = 1;
  for (const ConnectionId member : {1, 2, 3}) run.receive(member, beat);
  for (const ConnectionId member : {1, 2}) run.receive(member, CalendarChanged{"closed"});
  follow(monday);
  EXPECT_EQ(run.coordinator.run_phase(), RunPhase::suspended);
  run.stop("asked to");
  for (const ConnectionId member : {1, 2, 3}) run.receive(member, Held{7});
  EXPECT_EQ(run.last<StopAt>(3)->step, 7U);
  EXPECT_FALSE(run.ended);
  for (const ConnectionId member : {1, 2, 3}) run.receive(member, Done{"{}", digest_of(5)});
  EXPECT_TRUE(run.ended);
}

TEST_F(Calendars, AClosedMemberIsNotPartOfTheEnd) {
  begin("mon closed");
  follow(monday);
  run.seal_all({1, 2});
  for (const ConnectionId member : {1, 2}) run.receive(member, Done{"{}", digest_of(5)});
  ASSERT_TRUE(run.ended);
  EXPECT_EQ(run.ended->how, Ended::How::finished);
  EXPECT_TRUE(run.last<Finished>(1));
  EXPECT_TRUE(run.last<Finished>(3)) << "it must not wait for ever";
  EXPECT_THAT(run.said, Contains(HasSubstr("c is not part of the end: its calendar closes its link")));
}

TEST_F(Calendars, TheUsualRateReturnsWithTheEndOfAnEntry) {
  begin("mon 8:00-18:00 8Mbps");
  Heartbeat beat;
  beat.view = 1;
  beat.uplink = 5'000'000;
  run.receive(3, beat);
  follow(monday + 8h);
  EXPECT_EQ(run.coordinator.members().at("c").uplink, 1'000'000U);
  run.seal_all({1, 2, 3});
  follow(monday + 18h);
  EXPECT_EQ(run.coordinator.members().at("c").uplink, 5'000'000U);
  EXPECT_EQ(run.last<Seal>(3)->view, 3U);
}

TEST_F(Calendars, AChangedRateDealsTheChunksAgain) {
  begin("mon 8:00-18:00 8Mbps; mon 18:00-20:00 auto");
  follow(monday + 8h);
  EXPECT_THAT(run.said, Contains(HasSubstr("calendar of c: at most 8 Mbit/s until Mon 18:00 UTC")));
  EXPECT_EQ(run.last<Seal>(3)->view, 2U) << "it stays in the view";
  EXPECT_EQ(run.coordinator.members().at("c").uplink, 1'000'000U);
  run.seal_all({1, 2, 3});
  EXPECT_EQ(in_view(), 3U);
  follow(monday + 18h);
  EXPECT_THAT(run.said, Contains(HasSubstr("calendar of c: no limit until Mon 20:00 UTC")));
  EXPECT_EQ(run.coordinator.members().at("c").uplink, 0U) << "not known until it is measured";
}

TEST(DealtByCalendars, OwnersThatKeepWhatTheCodecLostStay) {
  CoordinatorHarness run(2);
  auto hello = CoordinatorHarness::hello("a");
  hello.calendar = "mon 8:00-18:00 8Mbps";
  run.receive(1, hello);
  run.receive(2, CoordinatorHarness::hello("b"));
  for (const ConnectionId member : {1, 2}) run.receive(member, CoordinatorHarness::sealed());
  run.coordinator.follow_calendars(monday + 8h);
  run.tick(1s);
  EXPECT_THAT(run.said, Contains(HasSubstr("calendar of a: at most 8 Mbit/s")));
  EXPECT_EQ(run.last<Seal>(1)->view, 1U) << "another deal would change the run's bits";
}

TEST_F(Calendars, ARunThatNeedsAllItsMembersWaitsForThem) {
  CoordinatorHarness rigid(CoordinatorHarness::rigid(1));
  auto hello = CoordinatorHarness::hello("a");
  hello.calendar = "closed";
  rigid.receive(1, hello);
  rigid.receive(1, CoordinatorHarness::sealed());
  rigid.coordinator.follow_calendars(monday);
  rigid.tick(1s);
  EXPECT_EQ(rigid.coordinator.run_phase(), RunPhase::running);
  EXPECT_FALSE(rigid.ended);
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
