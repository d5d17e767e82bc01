// One member's state machine: a normal round, repeats and acknowledgements, starting from a checkpoint.

#include "member_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::ElementsAre;

TEST_F(ProtocolMember, ARoundAsItShouldGo) {
  contribute_all(1);
  auto actions = take();
  ASSERT_EQ(actions.chunks.size(), 1U) << "chunk 0 goes to its owner; chunk 1 stays here";
  EXPECT_EQ(actions.chunks[0].peer, 0);
  EXPECT_EQ(actions.chunks[0].message.view, view_number);
  EXPECT_EQ(actions.chunks[0].message.key, (ChunkKey{1, 0, self, ChunkKind::contribution}));
  EXPECT_EQ(member.unacknowledged(), 1U);
  member.acknowledged(0, view_number, {1, 0, self, ChunkKind::contribution});
  EXPECT_EQ(member.unacknowledged(), 0U);

  feed(2, contribution(2, 1, 1, 12));
  EXPECT_TRUE(take().jobs.empty()) << "member 0 is still missing";
  feed(0, contribution(0, 1, 1, 10));
  actions = take();
  ASSERT_EQ(actions.jobs.size(), 1U);
  EXPECT_EQ(actions.acks.size(), 1U);
  std::vector<Bytes> in_order;
  for (const auto& chunk : actions.jobs[0].contributions) in_order.push_back(*chunk);
  EXPECT_THAT(in_order, ElementsAre(*bytes(1, 10), *bytes(1, 1), *bytes(1, 12)))
      << "in the order of members, not of arrival";

  member.reduced(view_number, 1, 1, bytes(1, 99));
  actions = take();
  ASSERT_EQ(actions.chunks.size(), 2U) << "the result goes to both peers";
  EXPECT_EQ(actions.chunks[0].message.key, (ChunkKey{1, 1, self, ChunkKind::result}));
  EXPECT_TRUE(actions.rounds.empty()) << "the result of chunk 0 is missing";
  feed(0, result(0, 0, 1, 98));
  actions = take();
  ASSERT_EQ(actions.rounds.size(), 1U);
  EXPECT_EQ(actions.rounds[0].fragment, 0U);
  EXPECT_EQ(actions.rounds[0].round, 1U);
  EXPECT_EQ(*actions.rounds[0].results[0], *bytes(0, 98));
  EXPECT_EQ(*actions.rounds[0].results[1], *bytes(1, 99));
}

TEST_F(ProtocolMember, RepeatsAreAcknowledgedAgainAndUsedOnce) {
  contribute_all(1);
  for (int i = 0; i < 3; ++i) feed(0, contribution(0, 1, 1, 50));
  auto actions = take();
  EXPECT_EQ(actions.acks.size(), 3U) << "an acknowledgement may have been lost: each repeat needs one";
  EXPECT_TRUE(actions.jobs.empty()) << "a repeat must not count as another member's";
  finish_round(1);
  EXPECT_EQ(take().rounds.size(), 1U);
  feed(0, result(0, 0, 1, 98));
  feed(2, contribution(2, 1, 1, 52));
  member.applied(0, 1, digest);
  feed(0, result(0, 0, 1, 98));
  feed(2, contribution(2, 1, 1, 52));
  actions = take();
  EXPECT_EQ(actions.acks.size(), 4U);
  EXPECT_EQ(actions.size(), 4U) << "a delivered chunk must not be delivered or reduced again";
}

TEST_F(ProtocolMember, PeersMayBeOneRoundAhead) {
  contribute_all(1);
  finish_round(1);
  feed(2, contribution(2, 1, 2, 22));  // member 2 has applied round 1 already
  take();
  member.applied(0, 1, digest);
  contribute_all(2);
  feed(0, contribution(0, 1, 2, 20));
  const auto actions = take();
  ASSERT_EQ(actions.jobs.size(), 1U);
  EXPECT_EQ(actions.jobs[0].round, 2U);
}

// ---- a link that comes up again ----

TEST_F(ProtocolMember, ANewLinkRepeatsWhatIsNotAcknowledged) {
  contribute_all(1);
  finish_round(1);  // the result of chunk 1 goes to members 0 and 2
  take();
  member.acknowledged(2, view_number, {1, 1, self, ChunkKind::result});
  member.repeat_to(2, [](const ChunkKey&) { return true; });
  EXPECT_EQ(take().chunks.size(), 0U);
  member.repeat_to(0, [](const ChunkKey&) { return true; });
  const auto actions = take();
  ASSERT_EQ(actions.chunks.size(), 2U) << "the own contribution to chunk 0 and the result of chunk 1";
  EXPECT_EQ(*actions.chunks[0].message.bytes, *bytes(0, 1)) << "the bytes must be those first encoded";
  EXPECT_EQ(*actions.chunks[1].message.bytes, *bytes(1, 99));
  member.repeat_to(0, [](const ChunkKey& key) { return key.chunk == 1; });
  EXPECT_EQ(take().chunks.size(), 1U) << "a lane must repeat its own chunks only";
}

TEST_F(ProtocolMember, AcknowledgementsOfOthersOrOfOldViewsCountForNothing) {
  contribute_all(1);
  const ChunkKey key{1, 0, self, ChunkKind::contribution};
  member.acknowledged(2, view_number, key);
  member.acknowledged(0, view_number - 1, key);
  member.acknowledged(999, view_number, key);
  member.acknowledged(0, view_number, {1, 7, self, ChunkKind::contribution});
  EXPECT_EQ(member.unacknowledged(), 1U);
}

TEST_F(ProtocolMember, WhatARoundProvesNeedsNoAcknowledgement) {
  contribute_all(1);
  finish_round(1);
  EXPECT_EQ(member.unacknowledged(), 3U);
  member.applied(0, 1, digest);
  EXPECT_EQ(member.unacknowledged(), 2U) << "member 0 has reduced our contribution and needs it no longer";
}

TEST_F(ProtocolMember, ResultsAreKeptForThoseWhoLag) {
  for (Round round = 1; round <= 6; ++round) {
    contribute_all(round);
    finish_round(round);
    member.applied(0, round, digest);
  }
  EXPECT_EQ(member.unacknowledged(), 2 * Member::max_kept) << "a member that needs older results is evicted";
  member.lowest_applied({6, 0});
  EXPECT_EQ(member.unacknowledged(), 2 * Member::always_kept) << "the whole view has applied the older ones";
  EXPECT_EQ(member.chunks_held(), 2 * Member::always_kept);
  member.lowest_applied({7});
  member.lowest_applied({0, 0, 0});
  EXPECT_EQ(member.chunks_held(), 2 * Member::always_kept)
      << "reports for another layout, and outdated ones, must be ignored";
}

// ---- starting from a checkpoint with a single member ----

TEST_F(ProtocolMember, RoundsCountFromTheCheckpoint) {
  Member resumed(layout, codecs, {}, {{7, digest}, {6, digest}});
  begin(resumed);
  const auto acknowledged = [&](ChunkId chunk, Round round) {
    EXPECT_EQ(resumed.receive(0, contribution(0, chunk, round, 1)), std::nullopt);
    return !resumed.take_actions().empty();
  };
  EXPECT_TRUE(acknowledged(1, 7 + Member::window));
  EXPECT_FALSE(acknowledged(1, 8 + Member::window));
  EXPECT_TRUE(acknowledged(2, 6 + Member::window));
  EXPECT_FALSE(acknowledged(2, 7 + Member::window));
}

/// This member and another one resume with the result of round 8 of fragment 0 in their checkpoints; the
/// first view has begun at the other one only. `message` is the next view.
struct BegunElsewhere {
  explicit BegunElsewhere(const FragmentLayout& layout, const CodecPlan& codecs, const Digest& digest,
                          const std::vector<SharedBytes>& results)
      : member(layout, codecs, {}, {{7, digest}, {6, digest}}) {
    member.keep_restored({.fragment = 0, .round = 8, .results = results, .samples = {}});
    message = {.view = {2, {{"a", 1, "", 0}, {"b", 1, "", 0}}, {0, 1, 1}},
               .token = {},
               .layout = {},
               .reference = 1,
               .step = 0,
               .chains = {{{7, digest}}, {{6, digest}}},
               .fixed = {},
               .applied = {{7, 6}, {7, 6}},
               .ledger = {FragmentLedger(7), FragmentLedger(6)},
               .reserved = std::vector<SampleSet>(2)};
  }
  Member member;
  NewView message;
};

TEST_F(ProtocolMember, ARoundOfTheCheckpointIsKeptIfTheRunHasDecidedIt) {
  BegunElsewhere scene(layout, codecs, digest, {bytes(0, 5), bytes(1, 6)});
  ChunkSet both(2);
  both.add(0);
  both.add(1);
  scene.message.fixed = {{0, 8, {{0, both}}}};
  const auto sealed = scene.member.seal(2);
  ASSERT_TRUE(sealed);
  ASSERT_EQ(sealed->held.size(), 1U) << "others may need it from here";
  EXPECT_EQ(sealed->held[0].round, 8U);
  ASSERT_EQ(scene.member.activate(scene.message, 1), Member::Entry::begun);
  EXPECT_TRUE(scene.member.take_retracted().empty()) << "it was not delivered, so it cannot be withdrawn";
  static_cast<void>(scene.member.take_actions());
  ChunkMessage repeated{2, {8, 0, 0, ChunkKind::result}, bytes(0, 5)};
  EXPECT_EQ(scene.member.receive(0, repeated), std::nullopt);
  EXPECT_EQ(scene.member.take_actions().size(), 1U) << "acknowledged, and not delivered: the trainer has it";
}

TEST_F(ProtocolMember, ARoundOfTheCheckpointThatTheRunMakesAgainEvicts) {
  BegunElsewhere scene(layout, codecs, digest, {bytes(0, 5), bytes(1, 6)});
  ASSERT_TRUE(scene.member.seal(2));
  EXPECT_EQ(scene.member.activate(scene.message, 1), Member::Entry::evicted)
      << "its trainer would apply a result that is not the run's";
}

TEST_F(ProtocolMember, AloneItReducesItsOwn) {
  Member alone(layout, codecs, {}, {{}, {}});
  ASSERT_TRUE(alone.seal(1));
  ASSERT_EQ(alone.activate({.view = {1, {{"a", 1, "", 0}}, {0, 0, 0}},
                            .token = {},
                            .layout = {},
                            .reference = 0,
                            .step = 0,
                            .chains = {{{}}, {{}}},
                            .fixed = {},
                            .applied = {{0, 0}},
                            .ledger = Ledger(2),
                            .reserved = std::vector<SampleSet>(1)},
                           0),
            Member::Entry::begun);
  alone.contribute(2, 1, bytes(2, 5), 100);
  auto actions = alone.take_actions();
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(std::get<Reduce>(actions[0]).contributions.size(), 1U);
  alone.reduced(1, 2, 1, bytes(2, 6));
  actions = alone.take_actions();
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(std::get<Deliver>(actions[0]).fragment, 1U);
  EXPECT_EQ(alone.unacknowledged(), 0U);
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
