// The relays that the coordinator chooses for members that cannot connect to each other.

#include "isthmus/outer_sync/protocol/coordinator/paths/relays.h"

#include <gmock/gmock.h>

#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Time patience = 4s;

/// A view; its members report which others they cannot reach. Members with names in capitals open no port;
/// those with two letters are reached through the mailbox.
class RelayTable : public testing::Test {
 protected:
  void form(const std::vector<std::string>& names, const std::string& reducer = {}) {
    view.members.clear();
    for (const auto& name : names) {
      const bool closed = name.front() >= 'A' && name.front() <= 'Z';
      const auto address = !closed ? name + ":1" : name.size() == 2 ? name + ".mailbox:1" : "";
      view.members.push_back({name, incarnation.try_emplace(name, 1).first->second, address, 0,
                              name == reducer ? MemberKind::reducer : MemberKind::trainer});
    }
    relays.begin(view);
    receive();
  }
  ReplicaId id(const std::string& name) {
    return id_of({name, incarnation.try_emplace(name, 1).first->second, ""});
  }
  RunRelays::Pair pair(const std::string& a, const std::string& b) { return std::minmax(id(a), id(b)); }
  /// Takes the newest announcement, as if all members had received it.
  void receive() {
    if (const auto news = relays.take_news()) said = *news;
  }
  void report(const std::string& from, const std::vector<std::string>& lost,
              const std::vector<std::string>& relayed = {}) {
    Heartbeat beat;
    beat.relays = said.number;
    for (const auto& name : lost) beat.unreachable.push_back(id(name));
    for (const auto& name : relayed) beat.relayed.push_back(id(name));
    relays.add(id(from), beat);
  }
  std::vector<RunRelays::Pair> settle(Time now) {
    auto helpless = relays.settle(now, patience);
    receive();
    return helpless;
  }
  std::string relay_of(const std::string& a, const std::string& b) {
    const auto place = relays.relays().find(pair(a, b));
    if (place == relays.relays().end()) return "";
    for (const auto& member : view.members) {
      if (id_of(member) == place->second) return member.name;
    }
    return "not a member";
  }

  RunRelays relays;
  std::map<std::string, std::uint64_t> incarnation;  ///< 1 unless set by the test
  View view;
  Relays said;
};

TEST_F(RelayTable, APairGetsOneWhenAllHaveHadTimeToReport) {
  form({"a", "b", "c"});
  report("a", {"b"});
  EXPECT_THAT(settle(1s), IsEmpty());
  EXPECT_THAT(settle(1s + patience / 2 - Time(1)), IsEmpty());
  EXPECT_EQ(relay_of("a", "b"), "") << "others may have more to report";
  EXPECT_THAT(settle(1s + patience / 2), IsEmpty());
  EXPECT_EQ(relay_of("a", "b"), "c");
  EXPECT_THAT(relays.take_lines(),
              ElementsAre("a and b cannot reach each other; their chunks are relayed by c"));
  ASSERT_EQ(said.relays.size(), 1U);
  EXPECT_EQ(said.relays[0].by, id("c"));
}

TEST_F(RelayTable, NobodyWhoLacksOneOfThemIsTaken) {
  form({"a", "b", "c", "d"});
  report("a", {"b", "c"});
  static_cast<void>(settle(0s));
  EXPECT_THAT(settle(patience), IsEmpty());
  EXPECT_EQ(relay_of("a", "b"), "d");
  EXPECT_EQ(relay_of("a", "c"), "d");
}

TEST_F(RelayTable, WhoeverRelaysLeastIsTakenAndOneThatOnlyReducesFirst) {
  form({"a", "b", "c", "d", "e"}, "e");
  report("a", {"b"});
  report("c", {"b"});
  static_cast<void>(settle(0s));
  static_cast<void>(settle(patience));
  std::set<std::string> taken{relay_of("a", "b"), relay_of("b", "c")};
  EXPECT_TRUE(taken.contains("e"));
  EXPECT_EQ(taken.size(), 2U) << "each must relay for one pair";
}

TEST_F(RelayTable, WhereNobodyReachesBothTheyAreHelpless) {
  form({"a", "b", "c"});
  report("a", {"b", "c"});
  static_cast<void>(settle(0s));
  EXPECT_THAT(settle(patience / 2), testing::UnorderedElementsAre(pair("a", "b"), pair("a", "c")));
}

TEST_F(RelayTable, TwoWithoutPortsHaveOneFromTheStart) {
  form({"A", "B", "c"});
  EXPECT_EQ(relay_of("A", "B"), "c");
  ASSERT_EQ(said.relays.size(), 1U);
  report("A", {}, {"B"});
  report("B", {});
  EXPECT_THAT(settle(0s), IsEmpty());
  EXPECT_EQ(relay_of("A", "B"), "c") << "one of them does not know the relay yet";
}

TEST_F(RelayTable, TwoInTheMailboxHaveOneFromTheStart) {
  form({"MA", "MB", "c"});
  EXPECT_EQ(relay_of("MA", "MB"), "c");
  report("MA", {}, {"MB"});
  report("MB", {}, {"MA"});
  EXPECT_THAT(settle(0s), IsEmpty());
  EXPECT_EQ(relay_of("MA", "MB"), "c");
}

TEST_F(RelayTable, TwoInTheMailboxHaveOneAgainWhenItIsBack) {
  form({"MA", "MB", "c"});
  report("MB", {});
  report("MA", {"c"}, {"MB"});
  EXPECT_THAT(settle(0s), IsEmpty());
  report("MA", {"c"});
  EXPECT_THAT(settle(1s), IsEmpty());
  EXPECT_EQ(relay_of("MA", "MB"), "") << "they are connected, and it does not reach MA";
  report("MA", {});
  EXPECT_THAT(settle(2s), IsEmpty());
  EXPECT_EQ(relay_of("MA", "MB"), "c");
  const auto number = said.number;
  report("MA", {});
  report("MB", {});
  EXPECT_THAT(settle(3s), IsEmpty());
  EXPECT_EQ(relay_of("MA", "MB"), "c") << "they are still connected through the mailbox";
  EXPECT_EQ(said.number, number);
}

TEST_F(RelayTable, OneThatTwoInTheMailboxDoNotUseIsReplaced) {
  form({"MA", "MB", "c", "d"});
  ASSERT_EQ(relay_of("MA", "MB"), "c");
  report("MA", {});
  report("MB", {});
  EXPECT_THAT(settle(1s), IsEmpty());
  EXPECT_EQ(relay_of("MA", "MB"), "c") << "they may still begin to use it";
  EXPECT_THAT(settle(1s + patience), IsEmpty());
  EXPECT_EQ(relay_of("MA", "MB"), "d");
  report("MA", {}, {"MB"});
  report("MB", {}, {"MA"});
  for (Time now = 2s + patience; now < 4 * patience; now += 1s) EXPECT_THAT(settle(now), IsEmpty());
  EXPECT_EQ(relay_of("MA", "MB"), "d") << "they use it";
}

TEST_F(RelayTable, AMailboxThatARelayNeedsIsLeftAlone) {
  form({"MA", "MB", "c", "d"});
  report("MA", {"c", "d"});
  report("MB", {});
  report("c", {"MA", "d"});
  report("d", {"MA", "c"});
  for (Time now = 0s; now < patience; now += 1s) EXPECT_THAT(settle(now), IsEmpty());
  ASSERT_EQ(relay_of("MA", "c"), "MB");
  report("MA", {}, {"c"});
  report("c", {}, {"MA", "d"});
  report("d", {}, {"c"});
  for (Time now = patience; now < 3 * patience; now += 1s) EXPECT_THAT(settle(now), IsEmpty());
  EXPECT_EQ(relay_of("MA", "c"), "MB");
  EXPECT_EQ(relay_of("MA", "MB"), "")
      << "d reaches both, but MA reaches c only through its connection with MB";
}

TEST_F(RelayTable, TwoInTheMailboxNeedNone) {
  form({"MA", "MB"});
  for (Time now = 0s; now < 4 * patience; now += 1s) EXPECT_THAT(settle(now), IsEmpty());
  EXPECT_THAT(relays.take_lines(), IsEmpty());
  form({"MA", "MB", "MC"});
  EXPECT_TRUE(relays.relays().empty()) << "a relay that is reached through the mailbox is no faster";
}

TEST_F(RelayTable, AMailboxOfOneIsNoWay) {
  form({"A", "MB", "c"});
  EXPECT_EQ(relay_of("A", "MB"), "c");
  form({"A", "MB"});
  static_cast<void>(settle(10s));
  EXPECT_THAT(settle(10s + patience), ElementsAre(pair("A", "MB")));
}

TEST_F(RelayTable, AMemberInTheMailboxRelaysIfNeeded) {
  form({"MA", "MB", "c"});
  report("MA", {"c"});
  report("MB", {});
  report("c", {"MA"});
  for (Time now = 0s; now < patience; now += 1s) EXPECT_THAT(settle(now), IsEmpty());
  EXPECT_EQ(relay_of("MA", "c"), "MB") << "MB reaches MA through the mailbox, and c directly";
}

TEST_F(RelayTable, OneThatWorksStaysAndNothingIsSaidOfIt) {
  form({"A", "B", "c"});
  const auto number = said.number;
  for (Time now = 0s; now < 10 * patience; now += 1s) {
    report("A", {}, {"B"});
    report("B", {}, {"A"});
    EXPECT_THAT(settle(now), IsEmpty());
  }
  EXPECT_EQ(said.number, number);
  EXPECT_THAT(relays.take_lines(), testing::SizeIs(1));
}

TEST_F(RelayTable, OneThatDoesNotHelpIsReplacedAndInTheEndThePairIsHelpless) {
  form({"a", "b", "c", "d"});
  report("a", {"b"});
  static_cast<void>(settle(0s));
  EXPECT_THAT(settle(patience / 2), IsEmpty());
  EXPECT_EQ(relay_of("a", "b"), "c");
  report("a", {"b"}, {"b"});  // a knows the relay and still has no path to b
  EXPECT_THAT(settle(patience), IsEmpty());
  EXPECT_EQ(relay_of("a", "b"), "c") << "the relay needs time";
  EXPECT_THAT(settle(2 * patience), IsEmpty());
  EXPECT_EQ(relay_of("a", "b"), "d");
  EXPECT_THAT(settle(3 * patience), IsEmpty()) << "the reason why d does not help was not reported yet";
  EXPECT_EQ(relay_of("a", "b"), "d");
  EXPECT_THAT(settle(4 * patience), ElementsAre(pair("a", "b")));
}

TEST_F(RelayTable, WhoIsCutOffFromTheLastRelayTooMayReportItLate) {
  form({"a", "b", "c"});
  report("a", {"b"});
  static_cast<void>(settle(0s));
  EXPECT_THAT(settle(patience / 2), IsEmpty());
  EXPECT_EQ(relay_of("a", "b"), "c");
  report("a", {"b"}, {"b"});
  EXPECT_THAT(settle(2 * patience), IsEmpty()) << "either end may be cut off";
  report("a", {"b", "c"}, {"b"});
  EXPECT_THAT(settle(3 * patience), testing::UnorderedElementsAre(pair("a", "b"), pair("a", "c")))
      << "a is cut off";
}

TEST_F(RelayTable, ARelayThatLosesOneOfThemIsReplaced) {
  form({"a", "b", "c", "d"});
  report("a", {"b"});
  static_cast<void>(settle(0s));
  static_cast<void>(settle(patience / 2));
  report("a", {}, {"b"});
  EXPECT_THAT(settle(patience), IsEmpty());
  report("c", {"b"});
  static_cast<void>(settle(2 * patience));
  EXPECT_THAT(settle(3 * patience), IsEmpty());
  EXPECT_EQ(relay_of("a", "b"), "d");
}

TEST_F(RelayTable, ItEndsWhenBothWhoHaveHeardOfItAreConnected) {
  form({"a", "b", "c"});
  report("a", {"b"});
  report("b", {});
  static_cast<void>(settle(0s));
  static_cast<void>(settle(patience / 2));
  ASSERT_EQ(relay_of("a", "b"), "c");
  EXPECT_THAT(settle(patience / 2 + 1s), IsEmpty());
  EXPECT_EQ(relay_of("a", "b"), "c") << "their reports are older than the relay";
  report("a", {});
  EXPECT_THAT(settle(patience / 2 + 2s), IsEmpty());
  EXPECT_EQ(relay_of("a", "b"), "c") << "only one of them has reported it";
  report("b", {});
  EXPECT_THAT(settle(patience / 2 + 3s), IsEmpty());
  EXPECT_EQ(relay_of("a", "b"), "");
  EXPECT_THAT(said.relays, IsEmpty());
}

TEST_F(RelayTable, InTheNextViewItGoesOnAndALostOneIsReplacedAtOnce) {
  form({"a", "b", "c", "d"});
  report("a", {"b"});
  static_cast<void>(settle(0s));
  static_cast<void>(settle(patience / 2));
  const auto number = said.number;
  form({"a", "b", "c"});
  EXPECT_EQ(relay_of("a", "b"), "c");
  EXPECT_GT(said.number, number) << "a member that came back has not received the old announcement";
  form({"a", "b", "d"});
  EXPECT_EQ(relay_of("a", "b"), "d");
  form({"a", "d"});
  EXPECT_THAT(relays.relays(), IsEmpty());
}

/// A pair that needed a relay gets one at once when a member comes back.
TEST_F(RelayTable, TwoThatNeededOneAreKnownByNameUntilTheyAreConnected) {
  form({"a", "b", "c"});
  report("a", {"b"});
  static_cast<void>(settle(0s));
  static_cast<void>(settle(patience / 2));
  ASSERT_EQ(relay_of("a", "b"), "c");
  form({"a", "c"});
  EXPECT_THAT(relays.relays(), IsEmpty());
  incarnation["b"] = 2;
  form({"a", "b", "c"});
  EXPECT_EQ(relay_of("a", "b"), "c") << "the new b is another replica at the same site";
  report("a", {});
  report("b", {});
  static_cast<void>(settle(patience));
  EXPECT_EQ(relay_of("a", "b"), "");
  form({"a", "c"});
  form({"a", "b", "c"});
  EXPECT_EQ(relay_of("a", "b"), "") << "they were connected in between";
}

TEST_F(RelayTable, WhatCannotBeIsPassedOver) {
  form({"a", "b", "c"});
  report("a", {"a", "x", "y"});
  report("b", {"b", "x"}, {"b"});
  report("z", {"a"});
  static_cast<void>(settle(0s));
  EXPECT_THAT(settle(2 * patience), IsEmpty());
  EXPECT_THAT(relays.relays(), IsEmpty());
}

// ---- the coordinator ----

Heartbeat beat(ViewNumber view, const std::vector<std::string>& lost, std::uint64_t heard = 0) {
  Heartbeat beat;
  beat.view = view;
  beat.relays = heard;
  for (const auto& name : lost) beat.unreachable.push_back(id_of({name, 1, ""}));
  return beat;
}

TEST(CoordinatorRelays, TwoThatLoseEachOtherStayInTheView) {
  CoordinatorHarness run(3);
  run.run_all({"eu-1", "us-1", "us-2"});
  const auto view = run.last<NewView>(1)->view.number;
  for (int second = 1; second <= 4; ++second) {
    run.tick(Time(std::chrono::seconds(second)));
    run.receive(1, beat(view, {"us-2"}));
    run.receive(2, beat(view, {}));
    run.receive(3, beat(view, {"eu-1"}));
  }
  for (const ConnectionId member : {1, 2, 3}) {
    const auto told = run.last<Relays>(member);
    ASSERT_TRUE(told) << "member " << member;
    ASSERT_EQ(told->relays.size(), 1U);
    EXPECT_EQ(told->relays[0].by, id_of({"us-1", 1, ""}));
  }
  EXPECT_THAT(run.said,
              testing::Contains("eu-1 and us-2 cannot reach each other; their chunks are relayed by us-1"));
  EXPECT_EQ(run.coordinator.relays(), (std::vector<Coordinator::RelayedPair>{{"eu-1", "us-2", "us-1"}}));
  EXPECT_FALSE(run.ended);
  EXPECT_EQ(run.count<Seal>(1), 1U) << "a relay must not change the view";
}

TEST(CoordinatorRelays, DonorsWithoutPortsAreNotNamed) {
  CoordinatorHarness run(2);
  auto closed = CoordinatorHarness::hello("us");
  closed.member.address.clear();
  run.receive(1, CoordinatorHarness::hello("eu"));
  run.receive(2, closed);
  run.receive(1, CoordinatorHarness::sealed());
  run.receive(2, CoordinatorHarness::sealed());
  run.receive(3, CoordinatorHarness::hello("new"));
  const auto admitted = run.last<Admitted>(3);
  ASSERT_TRUE(admitted);
  ASSERT_EQ(admitted->donors.size(), 1U);
  EXPECT_EQ(admitted->donors[0].name, "eu");
  EXPECT_THAT(run.said, testing::Contains(HasSubstr("us joined; it opens no port")));
}

/// Two members without ports, and between them a reducer that relays.
TEST(CoordinatorRelays, ANewcomerReachesDonorsWithoutPortsThroughMembersWithOne) {
  CoordinatorHarness run(2);
  auto reducer = CoordinatorHarness::hello("hub");
  reducer.member.kind = MemberKind::reducer;
  run.receive(3, reducer);
  ConnectionId connection = 0;
  for (const auto* name : {"eu", "us"}) {
    auto closed = CoordinatorHarness::hello(name);
    closed.member.address.clear();
    run.receive(++connection, closed);
  }
  run.receive(1, CoordinatorHarness::sealed());
  run.receive(2, CoordinatorHarness::sealed());
  Sealed blank;
  blank.view = 1;
  run.receive(3, blank);
  ASSERT_TRUE(run.last<NewView>(1));
  run.receive(4, CoordinatorHarness::hello("new"));
  const auto admitted = run.last<Admitted>(4);
  ASSERT_TRUE(admitted);
  EXPECT_THAT(admitted->donors, testing::SizeIs(2));
  ASSERT_THAT(admitted->bridges, testing::SizeIs(1));
  EXPECT_EQ(admitted->bridges[0].name, "hub");
  EXPECT_THAT(run.said, testing::Contains("new copies the state from 2 members, through hub"));
}

TEST(CoordinatorRelays, ANewcomerWhomNobodyWithAPortCanServeIsSpokenOf) {
  CoordinatorHarness run(1);
  auto closed = CoordinatorHarness::hello("eu");
  closed.member.address.clear();
  run.receive(1, closed);
  run.receive(1, CoordinatorHarness::sealed());
  ASSERT_TRUE(run.last<NewView>(1));
  run.receive(4, CoordinatorHarness::hello("new"));
  run.tick(1s);
  run.receive(1, beat(1, {}));
  EXPECT_FALSE(run.last<Admitted>(4));
  EXPECT_EQ(std::ranges::count(run.said,
                               "new waits for the state: no member that has it opens a port (eu), and no "
                               "other member does; start a reducer that opens one"),
            1);
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
