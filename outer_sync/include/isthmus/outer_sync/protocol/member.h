#pragma once
// A member's rounds and view changes as a pure state machine: calls go in, actions come out of
// `take_actions`. It opens no socket, reads no clock and does no arithmetic on parameters; its caller sends,
// reduces and delivers. Rules and reasons: docs/protocol.md.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/health.h"
#include "isthmus/outer_sync/protocol/messages/chunks.h"
#include "isthmus/outer_sync/protocol/messages/heartbeats.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/state.h"
#include "isthmus/outer_sync/protocol/messages/views.h"
#include "isthmus/outer_sync/protocol/rejection.h"
#include "isthmus/quant/codec.h"

namespace isthmus::outer_sync::protocol {

using Time = std::chrono::microseconds;  ///< since any fixed moment, of a clock that never stands still

/// How the chunks of a round are encoded. The first `warmup_rounds` rounds of every fragment carry gradients.
struct CodecPlan {
  quant::CodecSpec codec;
  quant::CodecSpec warmup_codec;
  Round warmup_rounds = 0;
  bool error_feedback = false;   ///< after the warm-up, which always has it
  bool sender_feedback = false;  ///< at the sender too; not used with merge: carry, which keeps the residual
  float feedback_decay = 1;      ///< factor on the owner's residual; 1 in the warm-up
  std::uint64_t seed = 0;  ///< of the results' stochastic rounding; contributions use their sender's seed
  bool exchanges = false;  ///< members also exchange fragments in pairs (exchanges.h), encoded by `codec`
  [[nodiscard]] const quant::CodecSpec& of(Round round) const {
    return round <= warmup_rounds ? warmup_codec : codec;
  }
};

/// When an owner may close a chunk.
struct ClosingRule {
  std::size_t least = 1;  ///< minimum contributions
  /// Contributions that suffice after `grace`; 0: all trainers of the view are needed.
  std::size_t quorum = 0;
  Time grace{};
  double reject = 0;  ///< factor of the RejectRule for a closed chunk; 0: rejects nothing
};

/// Send to `peer`. Repeat whenever `repeat_to` asks for it, until the peer acknowledges it.
struct SendChunk {
  MemberIndex peer;
  ChunkMessage message;
  SharedBytes packed = nullptr;  ///< the packed form of `message.bytes`, if it is smaller; null in repeats
};
struct SendAck {
  MemberIndex peer;
  ViewNumber view;
  ChunkKey key;
};
/// Send the peer `begun`: this view has begun here, so that it repeats what it sent before that.
struct SendBegun {
  MemberIndex peer;
  ViewNumber view;
};
/// All contributions, in member order: decode, add by weight, divide, encode; answer with `reduced`.
struct Reduce {
  ViewNumber view;
  ChunkId chunk;
  Round round;
  std::vector<SharedBytes> contributions;
  std::vector<std::uint64_t> weights;
  RejectRule reject;
  std::vector<MemberIndex> members;  ///< senders of the contributions
};
/// Clear the owner's residual of this chunk: a result was dropped, or another member owns the chunk now.
struct ForgetResidual {
  ChunkId chunk;
};
/// A round is complete: its results in chunk order.
struct Deliver {
  FragmentId fragment;
  Round round;
  std::vector<SharedBytes> results;
  std::vector<bool> included;        ///< by chunk: whether this member's contribution is in it
  std::vector<bool> rejected;        ///< by chunk: rejected for its norm; its values do not return
  std::size_t contributed = 0;       ///< contributors of the chunk that has the fewest
  std::vector<SampleRange> samples;  ///< samples of the contributors that are in all chunks
};
using MemberAction = std::variant<SendChunk, SendAck, SendBegun, Reduce, ForgetResidual, Deliver>;

/// A round that was in flight when a checkpoint was written, with its result. Its trainer applies it after
/// the restart; the other members may need it from there.
struct DecidedRound {
  FragmentId fragment;
  Round round;
  std::vector<SharedBytes> results;  ///< in chunk order
  std::vector<SampleRange> samples;  ///< samples of the contributors that are in all chunks
};

/// A trainer's state at the start of a run, or of the checkpoint that it resumes from.
struct InitialState {
  std::vector<FragmentState> fragments;  ///< current round and chain
  Digest parameters = {};                ///< of the global parameters
  Ledger ledger = {};                    ///< up to these rounds; empty if not known
  Settings settings = {};
  std::vector<DecidedRound> decided = {};
};

/// Large because it is one state machine: its rounds and its views change each other's state. The messages
/// are judged in member_checks.cpp.
class Member {
 public:
  /// `fragments`: current round and chain; `settings`: of the checkpoint; `ledger`: up to these rounds, empty
  /// if not known (then the first view brings more). The layout must outlive the member.
  Member(const FragmentLayout& layout, CodecPlan codecs, ClosingRule closing,
         std::vector<FragmentState> fragments, Ledger ledger = {}, Settings settings = {});

  /// Before the first view: keeps a result for other members. It is not delivered: this trainer has it, and
  /// applies exactly these bytes.
  void keep_restored(const DecidedRound& round);

  // ---- views ----

  /// Accepts nothing of older views from now on. Empty if a higher view was sealed before.
  [[nodiscard]] std::optional<Sealed> seal(ViewNumber view);
  /// Before the first view: forgets the seal, because the connection that carried it, and so the answer, is
  /// lost.
  void forget_seal();
  /// Highest view sealed.
  [[nodiscard]] ViewNumber sealed() const { return sealed_; }
  enum class Entry {
    begun,
    evicted,  ///< this member's rounds are not the run's: it must copy the state from others
    ignored   ///< another view was sealed since
  };
  /// Begins a view. Requires `fits(view)`, and that no delivered round is being applied. A reducer that was
  /// not in the reference begins at the newest round of the run's history: it has no parameters that could be
  /// wrong.
  [[nodiscard]] Entry activate(const NewView& message, MemberIndex self);
  /// Rounds that were delivered and not applied, and that the view which has just begun made void. Their
  /// results must be gone before the trainer's thread can take them.
  [[nodiscard]] std::vector<std::pair<FragmentId, Round>> take_retracted() {
    return std::exchange(retracted_, {});
  }
  /// Whether this member was in the reference, the view that the new one continues. (A reducer without a view
  /// was not.)
  [[nodiscard]] bool is_of_reference(const NewView& message, MemberIndex self) const {
    return view_.number == message.reference && (view_.number > 0 || trains(message.view.members.at(self)));
  }
  /// Whether a received view fits this layout and contains `self`.
  [[nodiscard]] bool fits(const NewView& message, MemberIndex self) const;
  [[nodiscard]] const View& view() const { return view_; }
  /// In force since the view began.
  [[nodiscard]] const Settings& settings() const { return settings_; }
  [[nodiscard]] MemberIndex self() const { return self_; }
  /// False between a seal and its view: then this member produces and accepts nothing.
  [[nodiscard]] bool in_view() const { return view_.number > 0 && view_.number == sealed_; }

  // ---- rounds ----

  /// Enters this member's encoded chunk, once per round, also between views. `weight`: its tokens. `squares`,
  /// if outer.reject is on: sum of squares of the decoded values. `samples`, with a fragment's first chunk:
  /// what it was trained on, at most `max_trained_on` ranges.
  /// `packed`: the form that is sent, if it is smaller.
  void contribute(ChunkId chunk, Round round, const SharedBytes& bytes, std::uint64_t weight,
                  double squares = 0, const SampleSet& samples = {}, const SharedBytes& packed = nullptr);
  /// Answers a Reduce. `measured` may be empty if outer.reject is off.
  void reduced(ViewNumber view, ChunkId chunk, Round round, const SharedBytes& bytes,
               const Measured& measured = {}, const SharedBytes& packed = nullptr);
  /// Measurements of the rounds completed here, each round once (OwnedHealth::take).
  [[nodiscard]] std::vector<RoundHealth> take_health() { return health_.take(); }
  /// Call when the global parameters here include the round; `samples` as delivered.
  void applied(FragmentId fragment, Round round, const Digest& chain, std::vector<SampleRange> samples = {});
  [[nodiscard]] const std::vector<FragmentState>& fragments() const { return applied_; }
  /// Ends at `fragments()`.
  [[nodiscard]] const Ledger& ledger() const { return ledger_; }
  /// Results of a round, by chunk; null if not held here.
  [[nodiscard]] std::vector<SharedBytes> held(FragmentId fragment, Round round) const;

  /// Takes a chunk from a peer of the view. Returns why it breaks the protocol (then nothing has changed).
  /// Silently drops chunks of other views.
  [[nodiscard]] std::optional<std::string> receive(MemberIndex from, const ChunkMessage& message);
  void acknowledged(MemberIndex from, ViewNumber view, const ChunkKey& key);
  /// The peer's view has begun: it has dropped everything sent before.
  void peer_begun(MemberIndex from, ViewNumber view);
  /// On a new connection to the peer: repeats what it has not acknowledged and `mine` selects.
  template <class Selects>
  void repeat_to(MemberIndex peer, Selects mine) {
    for (const auto& [key, message] : unacknowledged_.at(peer)) {
      if (mine(key)) actions_.push_back(SendChunk{peer, message});
    }
  }

  // ---- time, and progress of the other members ----

  /// Closes chunks that have had a quorum for the time `grace`, if there is a lease. Only this call closes by
  /// quorum, because only here the time is known.
  void tick(Time now);
  void lease_until(Time end) { lease_end_ = end; }
  /// `lowest`: by fragment, the last round that all members of the view have applied.
  void lowest_applied(const std::vector<Round>& lowest);

  [[nodiscard]] std::vector<MemberAction> take_actions() { return std::exchange(actions_, {}); }
  /// Chunks sent and not yet acknowledged, over all peers.
  [[nodiscard]] std::size_t unacknowledged() const;
  /// Encoded chunks in memory: own, received and results.
  [[nodiscard]] std::size_t chunks_held() const;
  /// A member that lags by more rounds is evicted.
  static constexpr Round max_lag = 2;
  /// Chunks are accepted for this many rounds after the last applied one. A member has one round of a
  /// fragment in flight, so its own are always accepted. A
  /// peer further ahead may send later rounds, which are dropped and requested again when this member has
  /// caught up.
  static constexpr Round window = max_lag + 1;
  /// Results of the last applied rounds that are always kept, for members that come back after a short
  /// absence.
  static constexpr Round always_kept = 2;
  static constexpr Round max_kept = always_kept + max_lag;
  /// Between a seal and its view no results are dropped, and delivered ones may still be applied.
  static constexpr Round max_held = max_kept + window;
  /// Chain hashes remembered per fragment.
  static constexpr std::size_t history_length = 16;

 private:
  struct Contribution {
    SharedBytes bytes;
    std::uint64_t weight = 0;
    double squares = 0;  ///< of this member's own contribution
    std::vector<TrainedOn> trained_on;
  };
  struct Gathering {
    std::vector<Contribution> by_member;
    std::size_t present = 0;
    std::optional<Time> quorum_since;
    bool closed = false;
  };
  struct Result {
    SharedBytes bytes;
    std::vector<ReplicaId> contributors;
    std::vector<SquaredNorm> norms;
    std::vector<TrainedOn> trained_on;
  };
  struct Results {
    std::vector<Result> by_chunk;
    std::size_t missing = 0;
    bool restored = false;  ///< from a checkpoint; the trainer applies it without a delivery
  };
  using Place = std::pair<Round, ChunkId>;

  [[nodiscard]] std::optional<std::string> check(MemberIndex from, const ChunkMessage& message) const;
  [[nodiscard]] std::optional<std::string> check_result(const ChunkMessage& message, bool decided) const;
  [[nodiscard]] std::optional<std::string> check_contributors(const ChunkMessage& message) const;
  [[nodiscard]] std::optional<std::string> check_rejection(const ChunkMessage& message) const;
  [[nodiscard]] std::optional<std::string> check_own_norm(const ChunkMessage& message) const;
  [[nodiscard]] std::optional<std::string> check_trained_on(const ChunkMessage& message, bool decided) const;
  [[nodiscard]] bool begins_fragment(ChunkId chunk) const {
    return layout_.chunks_of(layout_.fragment_of(chunk)).first == chunk;
  }
  void learn_ledger(const Ledger& of_the_run);
  [[nodiscard]] bool are_trainers_of_the_view(const std::vector<ReplicaId>& listed) const;
  [[nodiscard]] RejectRule reject_rule() const { return {closing_.reject, closing_.least}; }
  [[nodiscard]] bool is_of_the_run(const NewView& message) const;
  [[nodiscard]] bool restored_are_decided(const NewView& message) const;
  void begin_anew(const NewView& message);
  void discard_unapplied();
  void forget_residuals(const View& next, MemberIndex next_self);
  void push_fixed(const NewView& message);
  void contribute_again();
  void send(MemberIndex peer, ChunkMessage message, const SharedBytes& packed = nullptr);
  void send_contribution(ChunkId chunk, Round round, const Contribution& own,
                         const SharedBytes& packed = nullptr);
  void gather(MemberIndex from, ChunkId chunk, Round round, Contribution contribution);
  void close_by_quorum(ChunkId chunk, Round round, Gathering& gathering, Time now);
  void close(ChunkId chunk, Round round, Gathering& gathering);
  void keep_result(ChunkId chunk, Round round, Result result);
  void deliver(FragmentId fragment, Round round, const Results& results);
  void forget(FragmentId fragment);
  [[nodiscard]] std::vector<HeldResults> held_results() const;
  [[nodiscard]] const SharedBytes* held(const ChunkKey& key) const;
  [[nodiscard]] bool is_decided(ChunkId chunk, Round round) const;
  [[nodiscard]] Results& results_of(FragmentId fragment, Round round);

  const FragmentLayout& layout_;
  CodecPlan codecs_;
  ClosingRule closing_;
  std::vector<FragmentState> applied_;
  std::vector<std::vector<FragmentState>>
      history_;  ///< by fragment, oldest first, without the last applied round
  Ledger ledger_;
  ViewNumber sealed_ = 0;
  View view_;
  Settings settings_;
  std::vector<ReplicaId> ids_;       ///< of the view's members
  std::vector<ReplicaId> trainers_;  ///< the contributing ones, in the same order
  MemberIndex self_ = 0;
  std::optional<Time> lease_end_;
  OwnedHealth health_;
  std::vector<Round> lowest_;             ///< by fragment, over all members of the view
  std::set<Place> fixed_;                 ///< decided before this view began
  std::map<Place, Contribution> own_;     ///< until their round is applied here
  std::map<Place, Gathering> gathering_;  ///< contributions to chunks owned here
  /// Of rounds not yet applied, and of the last applied ones.
  std::map<std::pair<Round, FragmentId>, Results> results_;
  std::vector<std::map<ChunkKey, ChunkMessage>> unacknowledged_;  ///< by peer
  std::vector<bool> dropped_early_;  ///< by peer: it sent chunks of too distant rounds, to be requested again
  std::vector<MemberAction> actions_;
  std::vector<std::pair<FragmentId, Round>> retracted_;  ///< by the view that has just begun
};

}  // namespace isthmus::outer_sync::protocol
