#pragma once
// One member's state machine, fed by hand.

#include <gmock/gmock.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "isthmus/outer_sync/protocol/member.h"

namespace isthmus::outer_sync::protocol {

/// Member 1 of three, in the run's first view; it owns chunks 1 and 2. Fragment 0 has chunks 0 and 1,
/// fragment 1 has chunk 2, shorter.
class ProtocolMember : public testing::Test {
 protected:
  static constexpr MemberIndex self = 1;
  static constexpr ViewNumber view_number = 3;

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

  static SharedBytes bytes_of(std::size_t size, int value) {
    return std::make_shared<const Bytes>(size, static_cast<std::byte>(value));
  }
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

  FragmentLayout layout{{{0, 32}, {32, 10}}, 16};
  CodecPlan codecs{
      .codec = {quant::CodecKind::fp32}, .warmup_codec = {quant::CodecKind::bf16}, .warmup_rounds = 0};
  Digest digest;  ///< chosen by the owner of the parameters; the protocol does not interpret it
  Member member{layout, codecs, {}, {{}, {}}};
};

}  // namespace isthmus::outer_sync::protocol
