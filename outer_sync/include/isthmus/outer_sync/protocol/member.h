#pragma once
// One member's side of the rounds, as a pure state machine: calls go in, actions come out of `take_actions`.
// It opens no socket, reads no clock and does no arithmetic on parameters; whoever drives it sends, reduces
// and delivers.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "isthmus/outer_sync/layout.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "isthmus/quant/codec.h"

namespace isthmus::outer_sync::protocol {

/// How the chunks of a round are encoded: the first `warmup_rounds` of every fragment carry gradients.
struct CodecPlan {
  quant::CodecSpec codec;
  quant::CodecSpec warmup_codec;
  Round warmup_rounds = 0;
  bool error_feedback = false;  ///< after the warm-up, which always has it
  float feedback_decay = 1;     ///< what the owner carries of the residual; all of it in the warm-up
  std::uint64_t seed = 0;  ///< of the results' stochastic rounding; contributions have their sender's own
  /// A round further ahead than this of the last applied one cannot exist: its contributor would have needed
  /// ours. One more where a round's result is applied after the next one was sent.
  Round window = 2;
  [[nodiscard]] const quant::CodecSpec& of(Round round) const {
    return round <= warmup_rounds ? warmup_codec : codec;
  }
};

/// Send to `peer`, and again whenever a link to it comes up, until it is acknowledged.
struct SendChunk {
  MemberIndex peer;
  ChunkMessage message;
};
struct SendAck {
  MemberIndex peer;
  ViewNumber view;
  ChunkKey key;
};
/// All contributions are here, in member order: decode, add, divide, encode; answer with `reduced`.
struct Reduce {
  ChunkId chunk;
  Round round;
  std::vector<SharedBytes> contributions;
};
/// All results of a round are here, in chunk order.
struct Deliver {
  FragmentId fragment;
  Round round;
  std::vector<SharedBytes> results;
};
using MemberAction = std::variant<SendChunk, SendAck, Reduce, Deliver>;

class Member {
 public:
  /// `applied`: last applied round of each fragment (zeros at a fresh start). The layout must outlive the
  /// member.
  Member(const FragmentLayout& layout, CodecPlan codecs, std::vector<Round> applied);

  /// Begins a view. Requires that `self` is in it and its number is higher than any before.
  void activate(View view, MemberIndex self);
  [[nodiscard]] const View& view() const { return view_; }

  /// This member's own encoded chunk, once per round. Rounds of a fragment are contributed in order.
  void contribute(ChunkId chunk, Round round, const SharedBytes& bytes);
  /// The answer to a Reduce.
  void reduced(ChunkId chunk, Round round, const SharedBytes& bytes);
  /// The round is in the global parameters here: what was kept for it may be forgotten.
  void applied(FragmentId fragment, Round round);

  /// A chunk from a peer. Returns why the peer breaks the protocol, in which case nothing was changed.
  [[nodiscard]] std::optional<std::string> receive(MemberIndex from, const ChunkMessage& message);
  void acknowledged(MemberIndex from, ViewNumber view, const ChunkKey& key);
  /// A new connection to the peer: repeats what it has not acknowledged and `mine` selects (all of it by
  /// default).
  template <class Selects>
  void repeat_to(MemberIndex peer, Selects mine) {
    for (const auto& [key, bytes] : unacknowledged_.at(peer)) {
      if (mine(key)) actions_.push_back(SendChunk{peer, {view_.number, key, bytes}});
    }
  }

  [[nodiscard]] std::vector<MemberAction> take_actions() { return std::exchange(actions_, {}); }
  /// Chunks sent and not yet acknowledged, all peers.
  [[nodiscard]] std::size_t unacknowledged() const;

 private:
  struct Gathering {
    std::vector<SharedBytes> by_member;
    std::size_t missing = 0;
  };
  struct Results {
    std::vector<SharedBytes> by_chunk;
    std::size_t missing = 0;
  };
  [[nodiscard]] std::optional<std::string> check(MemberIndex from, const ChunkMessage& message) const;
  void send(MemberIndex peer, const ChunkKey& key, const SharedBytes& bytes);
  void gather(MemberIndex from, ChunkId chunk, Round round, const SharedBytes& bytes);
  void keep_result(ChunkId chunk, Round round, const SharedBytes& bytes);
  [[nodiscard]] const SharedBytes* held(const ChunkKey& key) const;

  const FragmentLayout& layout_;
  CodecPlan codecs_;
  std::vector<Round> applied_;
  View view_;
  MemberIndex self_ = 0;
  std::map<std::pair<Round, ChunkId>, Gathering> gathering_;     ///< of chunks owned here
  std::map<std::pair<Round, FragmentId>, Results> results_;      ///< of rounds not yet applied here
  std::vector<std::map<ChunkKey, SharedBytes>> unacknowledged_;  ///< by peer
  std::vector<MemberAction> actions_;
};

}  // namespace isthmus::outer_sync::protocol
