// One member's state machine, fed by hand: a normal round, and messages that break the protocol.

#include "isthmus/outer_sync/protocol/member.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <string>

namespace isthmus::outer_sync::protocol {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Fragment 0 has chunks 0 and 1, fragment 1 has chunk 2, shorter. Member 1 owns chunks 1 and 2.
const std::vector<Range> fragments{{0, 32}, {32, 10}};
constexpr MemberIndex self = 1;
constexpr ViewNumber view_number = 3;

SharedBytes bytes_of(std::size_t size, int value) {
  return std::make_shared<const Bytes>(size, static_cast<std::byte>(value));
}

class ProtocolMember : public testing::Test {
 protected:
  ProtocolMember() { begin(member); }

  /// Begins the run's first view of three members, with the fragments at the rounds that `which` has.
  void begin(Member& which) const {
    ASSERT_TRUE(which.seal(view_number));
    NewView message{.view = {.number = view_number, .members = {}, .owners = {0, 1, 1}},
                    .token = {},
                    .layout = {},
                    .reference = 0,
                    .step = 0,
                    .chains = {{which.fragments()[0]}, {which.fragments()[1]}},
                    .fixed = {},
                    .applied = {}};
    for (const auto& fragment : which.fragments()) message.ledger.emplace_back(fragment.round);
    for (const auto* name : {"a", "b", "c"}) {
      message.view.members.push_back({name, 1, "", 0});
      message.applied.push_back({which.fragments()[0].round, which.fragments()[1].round});
      message.reserved.emplace_back();
    }
    ASSERT_TRUE(which.fits(message, self));
    ASSERT_EQ(which.activate(message, self), Member::Entry::begun);
    const auto begun = which.take_actions();
    ASSERT_EQ(begun.size(), 2U) << "both peers must be notified that the view has begun here";
    for (const auto& action : begun) EXPECT_EQ(std::get<SendBegun>(action).view, view_number);
  }
  static ReplicaId id(const char* name) { return id_of({name, 1, "", 0}); }

  /// fp32 bytes of the chunk's size.
  SharedBytes bytes(ChunkId chunk, int value) const { return bytes_of(4 * layout.chunk(chunk).size, value); }
  ChunkMessage contribution(MemberIndex from, ChunkId chunk, Round round, int value) const {
    return {view_number, {round, chunk, from, ChunkKind::contribution}, bytes(chunk, value), 100};
  }
  ChunkMessage result(MemberIndex from, ChunkId chunk, Round round, int value) const {
    return {view_number, {round, chunk, from, ChunkKind::result}, bytes(chunk, value)};
  }
  void contribute_all(Round round) {
    for (ChunkId k = 0; k < 2; ++k) member.contribute(k, round, bytes(k, static_cast<int>(round)), 100);
  }

  struct Actions {
    std::vector<SendChunk> chunks;
    std::vector<SendAck> acks;
    std::vector<Reduce> jobs;
    std::vector<Deliver> rounds;
    std::vector<SendBegun> begun;
    [[nodiscard]] std::size_t size() const {
      return chunks.size() + acks.size() + jobs.size() + rounds.size() + begun.size();
    }
  };
  Actions take() {
    Actions out;
    for (auto& action : member.take_actions()) {
      if (auto* chunk = std::get_if<SendChunk>(&action)) out.chunks.push_back(*chunk);
      if (auto* ack = std::get_if<SendAck>(&action)) out.acks.push_back(*ack);
      if (auto* job = std::get_if<Reduce>(&action)) out.jobs.push_back(*job);
      if (auto* round = std::get_if<Deliver>(&action)) out.rounds.push_back(*round);
      if (auto* begun = std::get_if<SendBegun>(&action)) out.begun.push_back(*begun);
    }
    return out;
  }
  /// Delivers a message that must be accepted.
  void feed(MemberIndex from, const ChunkMessage& message) {
    const auto problem = member.receive(from, message);
    EXPECT_FALSE(problem) << *problem;
  }
  /// Delivers a message that must be refused without any effect; returns the reason.
  std::string refused(MemberIndex from, const ChunkMessage& message) {
    take();
    const auto kept = member.unacknowledged();
    const auto problem = member.receive(from, message);
    EXPECT_EQ(take().size(), 0U) << "a refused chunk must not even be acknowledged";
    EXPECT_EQ(member.unacknowledged(), kept);
    return problem.value_or("accepted");
  }
  /// Plays the rest of a round of fragment 0 as the protocol demands.
  void finish_round(Round round) {
    for (const MemberIndex peer : {0, 2}) feed(peer, contribution(peer, 1, round, 50 + peer));
    member.reduced(view_number, 1, round, bytes(1, 99));
    feed(0, result(0, 0, round, 98));
  }

  FragmentLayout layout{fragments, 16};
  CodecPlan codecs{
      .codec = {quant::CodecKind::fp32}, .warmup_codec = {quant::CodecKind::bf16}, .warmup_rounds = 0};
  Digest digest;  ///< chosen by the owner of the parameters; the protocol does not interpret it
  Member member{layout, codecs, {}, {{}, {}}};
};

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

// ---- contributions that are missing ----

struct Quorum : ProtocolMember {
  Quorum() : hasty(layout, codecs, {.least = 2, .quorum = 2, .grace = Time(100)}, {{}, {}}) {
    begin(hasty);
    hasty.contribute(1, 1, bytes(1, 1), 100);
    EXPECT_EQ(hasty.receive(2, contribution(2, 1, 1, 12)), std::nullopt);
    static_cast<void>(hasty.take_actions());
  }
  std::size_t closed() {
    std::size_t jobs = 0;
    for (const auto& action : hasty.take_actions()) jobs += std::holds_alternative<Reduce>(action) ? 1 : 0;
    return jobs;
  }
  Member hasty;
};

TEST_F(Quorum, IsEnoughAfterTheGraceAndUnderALease) {
  hasty.lease_until(Time(1000));
  hasty.tick(Time(500));
  hasty.tick(Time(599));
  EXPECT_EQ(closed(), 0U) << "the third member may still contribute";
  hasty.tick(Time(600));
  EXPECT_EQ(closed(), 1U);
  hasty.tick(Time(700));
  EXPECT_EQ(closed(), 0U) << "once";
}

TEST_F(Quorum, IsNothingWithoutALease) {
  hasty.tick(Time(0));
  hasty.tick(Time(500));
  EXPECT_EQ(closed(), 0U) << "another view may have begun elsewhere";
  hasty.lease_until(Time(1000));
  hasty.tick(Time(1000));
  EXPECT_EQ(closed(), 0U) << "the lease ends at exactly this time";
  // A late chunk must not close the round by the time of an older tick.
  hasty.lease_until(Time(1001));
  EXPECT_EQ(hasty.receive(2, contribution(2, 1, 1, 12)), std::nullopt);
  EXPECT_EQ(closed(), 0U);
  EXPECT_EQ(hasty.receive(0, contribution(0, 1, 1, 10)), std::nullopt);
  EXPECT_EQ(closed(), 1U) << "with all contributions, neither is needed";
}

TEST_F(Quorum, WhoComesTooLateIsLeftOut) {
  hasty.lease_until(Time(1000));
  hasty.tick(Time(0));
  hasty.tick(Time(100));
  EXPECT_EQ(closed(), 1U);
  EXPECT_EQ(hasty.receive(0, contribution(0, 1, 1, 10)), std::nullopt);
  hasty.reduced(view_number, 1, 1, bytes(1, 99));
  std::size_t results = 0;
  for (const auto& action : hasty.take_actions()) {
    if (const auto* sent = std::get_if<SendChunk>(&action)) {
      ++results;
      EXPECT_THAT(sent->message.contributors, ElementsAre(id("b"), id("c")));
    }
  }
  EXPECT_EQ(results, 2U);
}

TEST_F(Quorum, ResultsWithoutOneAreRefused) {
  auto of_two = result(0, 0, 1, 98);
  of_two.contributors = {id("a"), id("c")};
  EXPECT_EQ(hasty.receive(0, of_two), std::nullopt);
  auto of_one = result(0, 0, 2, 98);
  of_one.contributors = {id("a")};
  EXPECT_THAT(hasty.receive(0, of_one).value_or("accepted"),
              HasSubstr("a result of 1 contributions; at least 2"));
  for (const auto& wrong : {std::vector{id("a"), id("a")}, {id("c"), id("a")}, {id("a"), id("d")}}) {
    of_one.contributors = wrong;
    EXPECT_THAT(hasty.receive(0, of_one).value_or("accepted"),
                HasSubstr("not trainers of the view, in member order"));
  }
  EXPECT_THAT(refused(0, of_two), HasSubstr("at least 3")) << "without a quorum, all are needed";
}

TEST_F(Quorum, TheResultSaysWhoIsInIt) {
  auto without_us = result(0, 0, 1, 98);
  without_us.contributors = {id("a"), id("c")};
  EXPECT_EQ(hasty.receive(0, without_us), std::nullopt);
  EXPECT_EQ(hasty.receive(0, contribution(0, 1, 1, 10)), std::nullopt);
  hasty.reduced(view_number, 1, 1, bytes(1, 99));
  for (const auto& action : hasty.take_actions()) {
    if (const auto* round = std::get_if<Deliver>(&action)) {
      EXPECT_THAT(round->included, ElementsAre(false, true)) << "chunk 0 was closed without this member";
      EXPECT_EQ(round->contributed, 2U);
      return;
    }
  }
  FAIL() << "the round must be delivered";
}

// ---- outer.reject ----

/// Member b with outer.reject: contributions of more than twice the median norm are left out.
class Rejecting : public ProtocolMember {
 protected:
  Rejecting() {
    begin(wary);
    wary.contribute(0, 1, bytes(0, 1), 100, 4);
    wary.contribute(1, 1, bytes(1, 1), 100, 4);
    static_cast<void>(wary.take_actions());
  }
  std::string heard(ChunkMessage message) { return wary.receive(0, message).value_or("accepted"); }
  ChunkMessage chunk_0(std::vector<ReplicaId> contributors, std::vector<SquaredNorm> norms) {
    auto message = result(0, 0, 1, 98);
    message.contributors = std::move(contributors);
    message.norms = std::move(norms);
    return message;
  }
  ReplicaId a = id("a"), b = id("b"), c = id("c");
  Member wary{layout, codecs, {.least = 2, .reject = 2}, {{}, {}}};
};

TEST_F(Rejecting, AnOwnerListsAllNormsAndThoseWhoAreLeft) {
  for (const MemberIndex peer : {0, 2})
    EXPECT_EQ(wary.receive(peer, contribution(peer, 1, 1, 50 + peer)), std::nullopt);
  static_cast<void>(wary.take_actions());
  wary.reduced(view_number, 1, 1, bytes(1, 99), {.squares = {3, 4, 900}, .dots = {0, 0, 0}});
  std::size_t results = 0;
  for (const auto& action : wary.take_actions()) {
    if (const auto* sent = std::get_if<SendChunk>(&action)) {
      ++results;
      EXPECT_THAT(sent->message.contributors, ElementsAre(a, b));
      EXPECT_THAT(sent->message.norms,
                  ElementsAre(SquaredNorm{a, 3}, SquaredNorm{b, 4}, SquaredNorm{c, 900}));
    }
  }
  EXPECT_EQ(results, 2U);
}

TEST_F(Rejecting, WhoIsLeftOutIsToldThatItDoesNotComeBack) {
  EXPECT_EQ(heard(chunk_0({a, c}, {{a, 0.5}, {b, 4}, {c, 0.25}})), "accepted");
  for (const MemberIndex peer : {0, 2})
    EXPECT_EQ(wary.receive(peer, contribution(peer, 1, 1, 50 + peer)), std::nullopt);
  wary.reduced(view_number, 1, 1, bytes(1, 99), {.squares = {3, 4, 5}, .dots = {0, 0, 0}});
  for (const auto& action : wary.take_actions()) {
    if (const auto* round = std::get_if<Deliver>(&action)) {
      EXPECT_THAT(round->included, ElementsAre(false, true));
      EXPECT_THAT(round->rejected, ElementsAre(true, false));
      EXPECT_EQ(round->contributed, 2U);
      return;
    }
  }
  FAIL() << "the round must be delivered";
}

TEST_F(Rejecting, ContributorsAndNormsMustAgreeByTheRule) {
  EXPECT_THAT(heard(chunk_0({a, b}, {{a, 3}, {b, 4}, {c, 5}})),
              HasSubstr("other contributors than outer.reject keeps"))
      << "c is not an outlier";
  EXPECT_THAT(heard(chunk_0({}, {{a, 3}, {b, 4}, {c, 900}})),
              HasSubstr("other contributors than outer.reject keeps"))
      << "c is an outlier";
  EXPECT_THAT(heard(chunk_0({}, {})), HasSubstr("a result of 0 contributions")) << "a result needs norms";
  EXPECT_THAT(heard(chunk_0({a, b}, {{a, 3}, {b, 4}})), HasSubstr("a result of 2 contributions; at least 3"))
      << "without a quorum";
  EXPECT_THAT(heard(chunk_0({}, {{a, 3}, {c, 5}, {b, 4}})),
              HasSubstr("not trainers of the view, in member order"));
  for (const double none : {-1.0, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THAT(heard(chunk_0({}, {{a, none}, {b, 4}, {c, 5}})),
                HasSubstr("an invalid sum of squares (negative or NaN)"));
  EXPECT_EQ(heard(chunk_0({}, {{a, 3}, {b, 4}, {c, 5}})), "accepted");
}

TEST_F(Rejecting, EverybodyKnowsItsOwnNorm) {
  EXPECT_THAT(heard(chunk_0({a, c}, {{a, 3}, {b, 900}, {c, 5}})),
              HasSubstr("this replica's contribution to chunk 0 that is 900"));
  auto later = chunk_0({}, {{a, 3}, {b, 4}, {c, 5}});
  later.key.round = 2;
  EXPECT_THAT(heard(later), HasSubstr("a contribution that this replica has not sent"));
  EXPECT_EQ(heard(chunk_0({}, {{a, 3}, {b, 4}, {c, 5}})), "accepted");
}

TEST_F(Rejecting, WithAQuorumWhoIsLateIsNotListed) {
  Member hasty{layout, codecs, {.least = 2, .quorum = 2, .reject = 2}, {{}, {}}};
  begin(hasty);
  EXPECT_EQ(hasty.receive(0, chunk_0({a, c}, {{a, 3}, {c, 900}})), std::nullopt)
      << "two norms have no median";
  EXPECT_THAT(hasty.receive(0, chunk_0({c}, {{c, 3}})).value_or("accepted"),
              HasSubstr("at least 2 are needed"));
}

TEST_F(ProtocolMember, NormsHaveNoPlaceWhereNothingIsRejected) {
  auto message = result(0, 0, 1, 98);
  message.norms = {{id("a"), 1}};
  EXPECT_THAT(refused(0, message), HasSubstr("norms in a run without outer.reject"));
}

// ---- messages that break the protocol ----

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
