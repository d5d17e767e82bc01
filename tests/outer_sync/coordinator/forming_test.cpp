// The phases of the coordinator's view, and the functions with which it forms one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator_support.h"
#include "isthmus/outer_sync/protocol/coordinator/forming/phase.h"
#include "protocol/coordinator/forming/forming.h"
#include "protocol/coordinator/forming/survivors.h"

namespace isthmus::outer_sync::protocol {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- phases ----

TEST(Phases, OnlyTheseFollowEachOther) {
  const std::vector<Phase> all{phase::Gathering{}, phase::Changing{}, phase::Running{}, phase::Suspended{},
                               phase::Over{}};
  const std::vector<std::vector<bool>> expected{
      {false, false, true, true, true},  // gathering: begins, or had begun without a report
      {false, true, true, true, true},   // changing
      {false, true, false, true, true},  // running
      {true, true, false, true, true},   // suspended: may go back to its checkpoints
      {false, false, false, false, false}};
  for (std::size_t now = 0; now < all.size(); ++now) {
    for (std::size_t next = 0; next < all.size(); ++next)
      EXPECT_EQ(may_follow(all[now], all[next]), expected[now][next]) << now << " to " << next;
  }
}

TEST(Phases, ASuspensionForAnotherReasonKeepsItsTimes) {
  Phase phase = phase::Running{};
  enter(phase, phase::Suspended{.because = {.text = "one"}});
  std::get<phase::Suspended>(phase).goes_back_at = 7s;
  enter(phase, phase::Suspended{.because = {.text = "other"}});
  EXPECT_EQ(std::get<phase::Suspended>(phase).because.text, "other");
  EXPECT_EQ(std::get<phase::Suspended>(phase).goes_back_at, Time(7s));
  enter(phase, phase::Changing{8s});
  enter(phase, phase::Suspended{.because = {.text = "third"}});
  EXPECT_FALSE(std::get<phase::Suspended>(phase).goes_back_at) << "that was another suspension";
}

// ---- members present ----

class Forming : public testing::Test {
 protected:
  MemberStatus& add(const std::string& name, MemberStatus::Role role = MemberStatus::Role::ready) {
    auto& member = roster.add(next_++, CoordinatorHarness::hello(name));
    member.role = role;
    return member;
  }
  MemberStatus& answer(const std::string& name) {
    auto& member = add(name);
    member.answered = true;
    member.state = CoordinatorHarness::sealed();
    return member;
  }
  static LastView view_of(const std::vector<std::string>& names) {
    LastView view{.number = 4, .members = {}, .token = {}};
    for (const auto& name : names) view.members.push_back(CoordinatorHarness::hello(name).member);
    return view;
  }
  Roster roster;
  CoordinatorOptions options = CoordinatorHarness::default_options(2);

 private:
  ConnectionId next_ = 1;
};

TEST_F(Forming, ASlotBelongsToANameUntilAnotherMemberHasIt) {
  add("a"), add("b");
  EXPECT_EQ(roster.claim_slot("a"), 0U);
  EXPECT_EQ(roster.claim_slot("b"), 1U);
  roster.remove("a");
  EXPECT_EQ(roster.claim_slot("c"), 0U);
  add("c"), add("a");
  EXPECT_EQ(roster.claim_slot("a"), 2U) << "c has the slot of a";
  EXPECT_EQ(roster.claim_slot("b"), 1U);
}

TEST_F(Forming, ALeaseOfARemovedMemberIsWaitedFor) {
  auto& a = add("a");
  a.answered = true;
  auto& b = add("b");
  b.lease_end = 5s;
  roster.advance(1s);
  EXPECT_FALSE(roster.leases_are_out()) << "b has not answered";
  b.answered = true;
  EXPECT_TRUE(roster.leases_are_out());
  roster.remove("b");
  EXPECT_FALSE(roster.leases_are_out());
  roster.advance(5s);
  EXPECT_TRUE(roster.leases_are_out());
}

TEST_F(Forming, ABarredMemberIsNotAble) {
  add("a"), add("b", MemberStatus::Role::joining);
  EXPECT_EQ(roster.able_trainers(), 1U) << "b has no state";
  roster.bar("a", 1s);
  EXPECT_EQ(roster.able_trainers(), 0U);
  roster.advance(7s);
  EXPECT_EQ(roster.able_trainers(), 1U);
  EXPECT_EQ(roster.take_bar_over(), "a");
}

TEST_F(Forming, TheStateIsWithThoseOfTheHighestView) {
  add("a").hello.activated = 2;
  add("b").hello.activated = 3;
  add("c");
  const auto names = [&](Round warmup) {
    std::vector<std::string> out;
    for (const auto& info : roster.with_state(warmup)) out.push_back(info.name);
    return out;
  };
  EXPECT_THAT(names(0), ElementsAre("b"));
  roster.find("b")->heartbeat.fragments = {{9, 1}, {10, 1}};
  EXPECT_THAT(names(10), IsEmpty()) << "it is in the warm-up";
  roster.find("b")->heartbeat.fragments = {{10, 1}, {10, 1}};
  EXPECT_THAT(names(10), ElementsAre("b"));
}

// ---- the first view ----

TEST_F(Forming, ARunBeginsAtTheNewestCheckpointThatAllHave) {
  EXPECT_EQ((add("a"), choose_beginning(roster, options, {}).step), 0U) << "a does not resume";
  for (const auto* name : {"a", "b"}) {
    auto& member = add(name);
    member.hello.resume = true;
    member.hello.checkpoints = {{10, 1}, {20, 2}};
  }
  roster.find("b")->hello.checkpoints.push_back({30, 3});
  EXPECT_EQ(choose_beginning(roster, options, {}).step, 20U);
  EXPECT_EQ(choose_beginning(roster, options, CheckpointId{10, 1}).step, 10U) << "it was chosen before";
  add("c").hello.resume = true;
  const auto beginning = choose_beginning(roster, options, {});
  EXPECT_EQ(beginning.step, 20U);
  EXPECT_THAT(beginning.without, ElementsAre("c"));
  options.steps = 15;
  EXPECT_THAT(choose_beginning(roster, options, {}).problem.value_or(""), HasSubstr("raise run.steps"));
}

TEST_F(Forming, WithoutACommonCheckpointItDoesNotBegin) {
  for (const auto* name : {"a", "b"}) add(name).hello.resume = true;
  roster.find("a")->hello.checkpoints = {{10, 1}};
  roster.find("b")->hello.checkpoints = {{10, 2}};
  EXPECT_THAT(choose_beginning(roster, options, {}).problem.value_or(""), HasSubstr("no checkpoint"));
  add("c").hello.checkpoints = {{10, 3}};
  EXPECT_THAT(choose_beginning(roster, options, {}).problem.value_or(""), HasSubstr("no checkpoint"));
  roster.find("c")->hello.checkpoints = {{10, 2}};
  EXPECT_EQ(choose_beginning(roster, options, {}).step, 10U) << "b and c have the same";
  roster.find("c")->hello.checkpoints = {};
  roster.find("b")->hello.checkpoints = {{5, 1}};
  EXPECT_EQ(choose_beginning(roster, options, {}).step, 10U) << "b was absent";
}

// ---- the next view ----

TEST_F(Forming, TheLayoutIsThatOfTheHighestViewThatHasBegun) {
  std::optional<FragmentLayout> layout;
  EXPECT_FALSE(settle_layout(layout, roster));
  EXPECT_FALSE(layout) << "no trainer has answered";
  answer("a").state.layout = {{0, 60}};
  answer("b").state.activated = 3;
  const auto other = settle_layout(layout, roster);
  ASSERT_TRUE(layout && other);
  EXPECT_EQ(layout->fragment_count(), 2U);
  EXPECT_EQ(other->name, "a");
  EXPECT_EQ(other->reference, "b");
  EXPECT_FALSE(other->diverged) << "a is of an older view";
  roster.find("a")->state.activated = 3;
  EXPECT_TRUE(settle_layout(layout, roster)->diverged);
  roster.remove("a");
  EXPECT_FALSE(settle_layout(layout, roster));
}

TEST_F(Forming, APlanIsMadeOfThoseThatHaveAnswered) {
  answer("a").state.reach = 7;
  answer("b").state.reach = 9;
  add("c");
  std::optional<FragmentLayout> layout;
  EXPECT_FALSE(settle_layout(layout, roster));
  EXPECT_EQ(reach_of_answers(roster), 9U);
  const auto planned = plan_next_view(*layout, roster, {});
  const auto* plan = std::get_if<ViewPlan>(&planned);
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(plan->message.view.members.size(), 2U);
  roster.find("a")->state.fragments = roster.find("b")->state.fragments = {{1, digest_of(1)}, {}};
  roster.find("b")->state.fragments[0].chain = digest_of(2);
  EXPECT_TRUE(std::holds_alternative<Diverged>(plan_next_view(*layout, roster, {})));
}

// ---- survivors ----

TEST_F(Forming, TheLastTrainersAreCountedByTheirFate) {
  const auto view = view_of({"a", "b", "c", "d", "e"});
  add("a");
  add("b", MemberStatus::Role::joining).hello.member.incarnation = 2;
  const Gone gone{{id_of(view.members[2])}, {id_of(view.members[3])}};
  const auto last = count_last_trainers(view, roster, gone);
  EXPECT_EQ(last.in_view, 5U);
  EXPECT_EQ(last.with_state, 1U);
  EXPECT_EQ(last.left, 1U);
  EXPECT_EQ(last.without_state, 2U) << "b has started again, and d was sent back";
  EXPECT_TRUE(has_survivor(view, roster));
  EXPECT_FALSE(last.state_is_lost(true)) << "a has it";
  roster.remove("a");
  const auto lost = count_last_trainers(view, roster, gone);
  EXPECT_FALSE(has_survivor(view, roster));
  EXPECT_FALSE(lost.state_is_lost(false)) << "a and e may come back with it";
  EXPECT_TRUE(lost.state_is_lost(true));
}

TEST_F(Forming, HalfOfTheTrainersWithTheStateAreEnough) {
  const auto view = view_of({"a", "b", "c", "d"});
  add("a");
  EXPECT_EQ(missing_survivors(view, roster, {}, 2), "b,c,d");
  EXPECT_EQ(missing_survivors(view, roster, {}, 1), "");
  add("b");
  EXPECT_EQ(missing_survivors(view, roster, {}, 4), "");
}

TEST_F(Forming, ATrainerThatLeftIsNotMissing) {
  const auto view = view_of({"a", "b", "c", "d"});
  add("a");
  EXPECT_EQ(missing_survivors(view, roster, {id_of(view.members[1])}, 2), "c,d");
  EXPECT_EQ(missing_survivors(view, roster, {id_of(view.members[1]), id_of(view.members[2])}, 2), "")
      << "a is half of a and d";
  add("b");
  EXPECT_EQ(missing_survivors(view, roster, {id_of(view.members[1])}, 3), "") << "b has come back";
}

TEST_F(Forming, AFirstViewHasBegunNowhereIfAllItsTrainersAreHereWithoutIt) {
  const auto view = view_of({"a", "b"});
  add("a");
  EXPECT_FALSE(has_begun_nowhere(view, roster, 2)) << "b may have begun it";
  add("b");
  EXPECT_TRUE(has_begun_nowhere(view, roster, 2));
  EXPECT_FALSE(has_begun_nowhere(view, roster, 3)) << "it was not the first view";
  roster.find("b")->heartbeat.view = 4;
  EXPECT_FALSE(has_begun_nowhere(view, roster, 2));
}

TEST_F(Forming, TooFewInTheWarmupAreStuckIfOthersWaitForTheState) {
  const auto view = view_of({"a", "b"});
  const auto stuck = [&] {
    return are_stuck_in_warmup(count_last_trainers(view, roster, {}), roster, 2, 10);
  };
  auto& a = add("a");
  EXPECT_FALSE(stuck()) << "no one waits";
  add("c", MemberStatus::Role::joining);
  EXPECT_FALSE(stuck()) << "a has reported no rounds";
  a.heartbeat.fragments = {{10, 1}, {9, 1}};
  EXPECT_TRUE(stuck());
  a.heartbeat.fragments = {{10, 1}, {10, 1}};
  EXPECT_FALSE(stuck()) << "a can serve the state";
  a.heartbeat.fragments = {{9, 1}, {9, 1}};
  add("b").heartbeat.fragments = {{9, 1}, {9, 1}};
  EXPECT_FALSE(stuck()) << "two are enough for a round";
  roster.remove("a");
  roster.remove("b");
  EXPECT_FALSE(stuck()) << "no one has the state";
}

TEST_F(Forming, MembersThatMayContinueElsewhereAreNotLeftBehindInTheWarmup) {
  const auto view = view_of({"a", "b", "d"});
  add("a").heartbeat.fragments = {{1, 1}};
  add("c", MemberStatus::Role::joining);
  EXPECT_FALSE(are_stuck_in_warmup(count_last_trainers(view, roster, {}), roster, 2, 10));
  const Gone gone{{id_of(view.members[1])}, {}};
  EXPECT_TRUE(are_stuck_in_warmup(count_last_trainers(view, roster, gone), roster, 2, 10));
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
