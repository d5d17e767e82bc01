// A member refuses chunks and views that break the protocol, without any effect.

#include <limits>
#include <string>

#include "member_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::HasSubstr;

TEST_F(ProtocolMember, ChunksOfAnotherViewAreDroppedWithoutAWord) {
  auto message = contribution(0, 1, 1, 10);
  for (const ViewNumber other : {view_number - 1, view_number + 1}) {
    message.view = other;
    feed(0, message);
    EXPECT_EQ(take().size(), 0U)
        << "it must not even be acknowledged: the sender repeats it when its view begins here";
  }
}

TEST_F(ProtocolMember, NobodySpeaksForSomebodyElse) {
  EXPECT_THAT(refused(2, contribution(0, 1, 1, 10)), HasSubstr("in the name of member 0"));
  EXPECT_THAT(refused(2, contribution(self, 1, 1, 10)), HasSubstr("in the name of member 1"));
  EXPECT_THAT(refused(2, contribution(60000, 1, 1, 10)), HasSubstr("in the name of member 60000"));
}

TEST_F(ProtocolMember, ChunksThatDoNotExistAreRefused) {
  for (const ChunkId chunk : {3U, 1000U, UINT32_MAX}) {
    auto message = contribution(0, 1, 1, 10);
    message.key.chunk = chunk;
    EXPECT_THAT(refused(0, message), HasSubstr("chunk " + std::to_string(chunk) + " of 3"));
  }
}

TEST_F(ProtocolMember, OnlyTheOwnerGathersAndOnlyTheOwnerAnswers) {
  EXPECT_THAT(refused(2, contribution(2, 0, 1, 10)), HasSubstr("not owned here"));
  EXPECT_THAT(refused(2, result(2, 0, 1, 10)), HasSubstr("a result of a chunk that it does not own"));
  EXPECT_THAT(refused(2, result(2, 1, 1, 10)), HasSubstr("does not own")) << "this member owns chunk 1";
}

TEST_F(ProtocolMember, KindsThatDoNotExistAreRefused) {
  for (const int kind : {0, 3, 255}) {
    auto message = contribution(0, 1, 1, 10);
    message.key.kind = static_cast<ChunkKind>(kind);
    EXPECT_THAT(refused(0, message), HasSubstr("unknown kind"));
  }
}

TEST_F(ProtocolMember, RoundsThatAreTooFarAheadAreAskedForAgain) {
  EXPECT_THAT(refused(0, contribution(0, 1, 0, 10)), HasSubstr("a chunk of round 0"));
  for (const Round round : {Member::window + 1, UINT64_MAX}) {
    feed(0, contribution(0, 1, round, 10));
    EXPECT_EQ(take().size(), 0U) << "this member lags and has no room for it";
  }
  feed(0, contribution(0, 1, Member::window, 10));  // the furthest round that is kept
  EXPECT_EQ(take().acks.size(), 1U);
  contribute_all(1);
  finish_round(1);
  take();
  member.applied(0, 1, digest);
  const auto actions = take();
  ASSERT_EQ(actions.begun.size(), 1U) << "member 0 must repeat what was dropped here";
  EXPECT_EQ(actions.begun[0].peer, 0);
}

TEST_F(ProtocolMember, SizesThatDoNotFitAreRefused) {
  for (const std::size_t size : {0U, 4U, 63U, 65U, 100000U}) {
    auto message = contribution(0, 1, 1, 10);
    message.bytes = bytes_of(size, 1);
    EXPECT_THAT(refused(0, message), HasSubstr("a chunk of " + std::to_string(size) + " bytes; expected 64"));
  }
  EXPECT_THAT(refused(0, {view_number, {1, 2, 0, ChunkKind::contribution}, bytes_of(64, 1), 1}),
              HasSubstr("expected 40"))
      << "a fragment's last chunk is shorter";
}

TEST_F(ProtocolMember, SizesFollowTheRoundsCodec) {
  auto with_warmup = codecs;
  with_warmup.warmup_rounds = 1;
  Member warm(layout, with_warmup, {}, {{}, {}});
  begin(warm);
  auto message = contribution(0, 1, 1, 10);
  EXPECT_THAT(warm.receive(0, message).value_or("accepted"), HasSubstr("expected 32"))
      << "the warm-up sends bf16";
  message.key.round = 2;
  EXPECT_EQ(warm.receive(0, message), std::nullopt);
}

TEST_F(ProtocolMember, TwoDifferentChunksForOnePlaceAreRefusedAndTheFirstStands) {
  feed(0, contribution(0, 1, 1, 10));
  feed(0, result(0, 0, 1, 98));
  EXPECT_THAT(refused(0, contribution(0, 1, 1, 11)), HasSubstr("two versions of one chunk"));
  EXPECT_THAT(refused(0, result(0, 0, 1, 97)), HasSubstr("two versions of one chunk"));
  contribute_all(1);
  feed(2, contribution(2, 1, 1, 12));
  member.reduced(view_number, 1, 1, bytes(1, 99));
  const auto actions = take();
  ASSERT_EQ(actions.jobs.size(), 1U);
  EXPECT_EQ(*actions.jobs[0].contributions[0], *bytes(1, 10));
  ASSERT_EQ(actions.rounds.size(), 1U);
  EXPECT_EQ(*actions.rounds[0].results[0], *bytes(0, 98));
}

TEST_F(ProtocolMember, RefusedChunksLeaveTheRoundAsItWas) {
  contribute_all(1);
  for (const auto& wrong : {contribution(2, 0, 1, 1), result(2, 1, 1, 1), contribution(2, 1, 0, 1)})
    refused(2, wrong);
  finish_round(1);
  const auto actions = take();
  EXPECT_EQ(actions.jobs.size(), 1U);
  EXPECT_EQ(actions.rounds.size(), 1U) << "the round must continue as if they had never arrived";
}

// ---- views that do not fit ----

TEST_F(ProtocolMember, ViewsThatDoNotFitAreTold) {
  NewView good{.view = {4, {{"a", 1, "", 0}, {"b", 1, "", 0}}, {0, 1, 1}},
               .token = {},
               .layout = {},
               .reference = view_number,
               .step = 0,
               .chains = {{{}}, {{}}},
               .fixed = {{0, 1, {{0, ChunkSet(2)}}}},
               .applied = {{0, 0}, {0, 0}},
               .ledger = Ledger(2),
               .reserved = std::vector<SampleSet>(2)};
  EXPECT_TRUE(member.fits(good, 1));
  EXPECT_FALSE(member.fits(good, 2)) << "the view has two members";
  const auto fits_with = [&](auto change) {
    auto message = good;
    change(message);
    return member.fits(message, 1);
  };
  EXPECT_FALSE(fits_with([](NewView& view) { view.view.owners.pop_back(); }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.view.owners[0] = 2; })) << "an owner that is not a member";
  EXPECT_FALSE(fits_with([](NewView& view) { view.chains.pop_back(); }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.chains[1].clear(); })) << "a chain without rounds";
  EXPECT_FALSE(fits_with([](NewView& view) { view.fixed[0].fragment = 2; }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.fixed[0].holders[0].first = 2; }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.fixed[0].holders[0].second = ChunkSet(9); }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.applied.pop_back(); }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.applied[0].pop_back(); }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.ledger.pop_back(); }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.reserved.pop_back(); }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.ledger[1].add({{0, 9, 9}}); })) << "an empty sample range";
  EXPECT_FALSE(fits_with([](NewView& view) { view.tracks = max_members + 1; }))
      << "more tracks than members are allowed";
  EXPECT_FALSE(fits_with([](NewView& view) {
    view.view.members.resize(max_members + 1);
    view.applied.resize(max_members + 1, {0, 0});
  }));
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
