// Tests of plan_view, which chooses the next view's members and starting rounds from the members' answers,
// and of layout_of.

#include "isthmus/outer_sync/protocol/view_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator_support.h"
#include "isthmus/outer_sync/protocol/member.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const FragmentLayout one_fragment({{0, 64}}, 16);

SealedMember standing(const std::string& name, MemberKind kind, ViewNumber activated, Round round,
                      std::uint8_t history = 0) {
  SealedMember out;
  out.info = {name, 1, name, 0, kind};
  out.sealed.view = activated + 1;
  out.sealed.activated = activated;
  out.sealed.fragments = {{round, digest_of(static_cast<std::uint8_t>(history + round))}};
  out.sealed.ledger = {FragmentLedger(round)};
  out.sealed.history.resize(1);
  for (Round r = round > 15 ? round - 15 : 0; r < round; ++r)
    out.sealed.history[0].push_back({r, digest_of(static_cast<std::uint8_t>(history + r))});
  return out;
}

TEST(PlanView, OneThatOnlyReducesIsNeverDisplacedForItsRounds) {
  const std::vector<SealedMember> members = {standing("a", MemberKind::trainer, 4, 20),
                                             standing("b", MemberKind::reducer, 3, 12, 100)};
  const auto plan = plan_view(one_fragment, members);
  EXPECT_THAT(plan.evicted, IsEmpty());
  EXPECT_THAT(plan.message.applied, ElementsAre(ElementsAre(20U), ElementsAre(20U)))
      << "the reducer starts at the run's round";
}

TEST(PlanView, WhatOnlyAReducerKnowsSendsNoTrainerAway) {
  // b is nine rounds ahead, and no member keeps the results that a needs.
  const std::vector<SealedMember> members = {standing("a", MemberKind::trainer, 4, 3),
                                             standing("b", MemberKind::reducer, 4, 12)};
  const auto plan = plan_view(one_fragment, members);
  ASSERT_EQ(plan.evicted.size(), 1U);
  EXPECT_EQ(plan.evicted[0].name, "b");
  ASSERT_EQ(plan.message.view.members.size(), 1U);
  EXPECT_EQ(plan.message.view.members[0].name, "a");
}

void hold(SealedMember& member, Round round) {
  ChunkSet all(4);
  for (std::size_t i = 0; i < 4; ++i) all.add(i);
  member.sealed.held.push_back({0, round, all});
}

TEST(PlanView, AViewThatHasBegunAtNoTrainerIsNoReference) {
  // b has applied round 21, which a was to get in view 4. c began view 4 at round 20 and keeps no results.
  std::vector<SealedMember> members = {standing("a", MemberKind::trainer, 3, 20),
                                       standing("b", MemberKind::trainer, 3, 21),
                                       standing("c", MemberKind::reducer, 4, 20)};
  hold(members[1], 21);
  const auto plan = plan_view(one_fragment, members);
  EXPECT_THAT(plan.evicted, IsEmpty());
  EXPECT_EQ(plan.message.reference, 3U);
  EXPECT_THAT(plan.message.applied, ElementsAre(ElementsAre(20U), ElementsAre(21U), ElementsAre(21U)));
}

TEST(PlanView, WhatATrainerHasAppliedOfTheRunItHandsOnWhereOnlyANewcomerHasBegunTheLastView) {
  std::vector<SealedMember> members = {standing("a", MemberKind::trainer, 3, 20),
                                       standing("b", MemberKind::trainer, 3, 18),
                                       standing("n", MemberKind::trainer, 4, 20)};
  for (const Round round : {19, 20, 21}) hold(members[0], round);
  auto plan = plan_view(one_fragment, members);
  EXPECT_THAT(plan.evicted, IsEmpty())
      << "n began at round 20 and keeps nothing; a keeps the results that b lacks";
  ASSERT_EQ(plan.message.fixed.size(), 2U) << "round 21 is not applied, so it may have been made again";
  EXPECT_EQ(plan.message.fixed[0].round, 19U);
  EXPECT_EQ(plan.message.fixed[1].round, 20U);
  ASSERT_EQ(plan.message.fixed[1].holders.size(), 1U);
  EXPECT_EQ(plan.message.fixed[1].holders[0].first, 0U);

  // A reducer forgets everything when it begins a new view.
  members[0].info.kind = MemberKind::reducer;
  plan = plan_view(one_fragment, members);
  ASSERT_EQ(plan.evicted.size(), 1U);
  EXPECT_EQ(plan.evicted[0].name, "b");
}

/// Each of two members owns a fragment and has made its rounds without the other for longer than results are
/// kept.
const FragmentLayout two_fragments({{0, 64}, {64, 64}}, 16);

SealedMember standing_in_two(const std::string& name, ViewNumber activated, Round first, Round second) {
  auto member = standing(name, MemberKind::trainer, activated, first);
  const auto other = standing(name, MemberKind::trainer, activated, second);
  member.sealed.fragments.push_back(other.sealed.fragments[0]);
  member.sealed.history.push_back(other.sealed.history[0]);
  member.sealed.ledger.push_back(other.sealed.ledger[0]);
  return member;
}

TEST(PlanView, WhereEachLacksWhatNobodyKeepsTheForemostGoesOn) {
  const std::vector<SealedMember> members = {standing_in_two("a", 4, 33, 27),
                                             standing_in_two("b", 4, 28, 33)};
  const auto plan = plan_view(two_fragments, members);
  ASSERT_EQ(plan.message.view.members.size(), 1U) << "at least one member must keep the state";
  EXPECT_EQ(plan.message.view.members[0].name, "b");
  ASSERT_EQ(plan.evicted.size(), 1U);
  EXPECT_EQ(plan.evicted[0].name, "a");
}

TEST(PlanView, WhereEachLacksWhatNobodyKeepsANewcomerThatHasTakenItFromBothGoesOn) {
  std::vector<SealedMember> members = {standing_in_two("a", 4, 33, 27), standing_in_two("b", 4, 28, 33),
                                       standing_in_two("c", 0, 33, 33), standing_in_two("d", 0, 33, 33)};
  members[0].sealed.step = 400;
  for (auto& member : members) member.sealed.settings.changes = {{100, {{"outer.optimizer.lr", ".5"}}}};
  const auto settings = members[0].sealed.settings;
  for (const std::size_t newcomer : {2, 3}) {
    auto& sealed = members[newcomer].sealed;
    sealed.history.assign(2, {});
    sealed.settings = {};
    sealed.ledger = {FragmentLedger(0), FragmentLedger(0)};  // a newcomer gets the ledger with its first view
    hold(members[newcomer], 34);                             // applied nowhere: dropped when the view begins
  }
  const auto plan = plan_view(two_fragments, members);
  ASSERT_EQ(plan.message.view.members.size(), 2U);
  EXPECT_EQ(plan.message.view.members[0].name, "c");
  EXPECT_EQ(plan.message.view.members[1].name, "d");
  EXPECT_EQ(plan.evicted.size(), 2U);
  EXPECT_EQ(plan.message.reference, 4U);
  EXPECT_EQ(plan.message.step, 400U);
  EXPECT_EQ(plan.message.settings, settings);
  EXPECT_TRUE(ledger_fits(plan.message.ledger, members[2].sealed.fragments));
  EXPECT_THAT(plan.message.fixed, IsEmpty());
  for (FragmentId p = 0; p < 2; ++p) {
    EXPECT_EQ(plan.message.chains[p].back(), members[2].sealed.fragments[p]);
    EXPECT_GT(plan.message.chains[p].size(), 1U)
        << "evicted members need the older rounds to recognise their history";
  }

  // A newcomer with a different history cannot continue the run.
  for (const std::size_t newcomer : {2, 3}) members[newcomer].sealed.fragments[1].chain = digest_of(1);
  const auto without = plan_view(two_fragments, members);
  ASSERT_EQ(without.message.view.members.size(), 1U);
  EXPECT_EQ(without.message.view.members[0].name, "b");
}

TEST(PlanView, WhatANewcomerDoesNotKnowOfTheHistoryTheOthersTell) {
  std::vector<SealedMember> members = {standing("a", MemberKind::trainer, 3, 20),
                                       standing("b", MemberKind::trainer, 3, 18),
                                       standing("n", MemberKind::trainer, 4, 20)};
  members[2].sealed.history[0].clear();
  for (const Round round : {19, 20}) hold(members[0], round);
  const auto plan = plan_view(one_fragment, members);
  EXPECT_THAT(plan.evicted, IsEmpty()) << "b is at an earlier round of the history that n follows";
  ASSERT_EQ(plan.message.chains[0].size(), Member::history_length);
  EXPECT_EQ(plan.message.chains[0].back(), members[2].sealed.fragments[0]);
  EXPECT_EQ(plan.message.chains[0].front().round, 5U);

  // A different round 20 means a different history.
  members[0] = standing("a", MemberKind::trainer, 3, 20, 100);
  EXPECT_EQ(plan_view(one_fragment, members).message.chains[0].size(), 1U);
  EXPECT_EQ(plan_view(one_fragment, members).evicted.size(), 2U);
}

TEST(LayoutOf, AStrangersWordIsChecked) {
  EXPECT_TRUE(layout_of(std::vector<Range>{{0, 64}}, 16));
  EXPECT_FALSE(layout_of(std::vector<Range>{}, 16));
  EXPECT_FALSE(layout_of(std::vector<Range>{{0, 64}}, 0));
  EXPECT_FALSE(layout_of(std::vector<Range>{{0, 1ULL << 50}}, 16));
  EXPECT_FALSE(layout_of(std::vector<Range>{{0, 1ULL << 40}}, 1)) << "too many chunks to list";
  EXPECT_FALSE(layout_of(std::vector<Range>{{0, 64}, {32, 64}}, 16));
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
