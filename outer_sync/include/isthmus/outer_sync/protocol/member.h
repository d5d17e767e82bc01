#pragma once
// One member's side of the rounds and of view changes, as a pure state machine: calls go in, actions come out
// of `take_actions`. It opens no socket, reads no clock and does no arithmetic on parameters; whoever drives
// it sends, reduces and delivers. docs/protocol.md has the rules and their reasons.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/health.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "isthmus/outer_sync/protocol/rejection.h"
#include "isthmus/quant/codec.h"

namespace isthmus::outer_sync::protocol {

using Time = std::chrono::microseconds;  ///< since any fixed moment; of one clock that never stands still

/// How the chunks of a round are encoded: the first `warmup_rounds` of every fragment carry gradients.
struct CodecPlan {
  quant::CodecSpec codec;
  quant::CodecSpec warmup_codec;
  Round warmup_rounds = 0;
  bool error_feedback = false;   ///< after the warm-up, which always has it
  bool sender_feedback = false;  ///< at the sender too; not with the carry merge, which keeps it anyway
  float feedback_decay = 1;      ///< what the owner carries of the residual; all of it in the warm-up
  std::uint64_t seed = 0;  ///< of the results' stochastic rounding; contributions have their sender's own
  [[nodiscard]] const quant::CodecSpec& of(Round round) const {
    return round <= warmup_rounds ? warmup_codec : codec;
  }
};

/// When an owner may close a chunk.
struct ClosingRule {
  std::size_t least = 1;  ///< contributions, always
  std::size_t quorum =
      0;  ///< contributions that are enough after `grace`; 0: only all of the view's trainers
  Time grace{};
  double reject = 0;  ///< factor of the RejectRule that a closed chunk is made by; 0: of all that is there
};

/// Send to `peer`, and again whenever `repeat_to` asks for it, until it is acknowledged.
struct SendChunk {
  MemberIndex peer;
  ChunkMessage message;
};
struct SendAck {
  MemberIndex peer;
  ViewNumber view;
  ChunkKey key;
};
/// Tell the peer that this view has begun here, so that it repeats what came before that.
struct SendBegun {
  MemberIndex peer;
  ViewNumber view;
};
/// Contributions are here, in member order: decode, add by weight, divide, encode; answer with `reduced`.
struct Reduce {
  ViewNumber view;
  ChunkId chunk;
  Round round;
  std::vector<SharedBytes> contributions;
  std::vector<std::uint64_t> weights;
  RejectRule reject;
  std::vector<MemberIndex> members;  ///< whose contributions these are
};
/// What the owner carries of this chunk's encoding is void: a result of it was dropped, or another owns it.
struct ForgetResidual {
  ChunkId chunk;
};
/// All results of a round are here, in chunk order.
struct Deliver {
  FragmentId fragment;
  Round round;
  std::vector<SharedBytes> results;
  std::vector<bool> included;   ///< by chunk: whether this member's contribution is in it
  std::vector<bool> rejected;   ///< by chunk: whether it was left out for its norm, and does not come back
  std::size_t contributed = 0;  ///< trainers in the chunk that has the fewest
  std::vector<SampleRange> samples;  ///< that contributors were trained on who are in all chunks
};
/// A round that was delivered and has not been applied is void.
struct Retract {
  FragmentId fragment;
  Round round;
};
using MemberAction = std::variant<SendChunk, SendAck, SendBegun, Reduce, ForgetResidual, Deliver, Retract>;

class Member {
 public:
  /// `fragments`: where this replica stands; `settings`: of its checkpoint; `ledger`: up to there, empty
  /// where it is not known (of one that has taken the state from others the first view tells more). The
  /// layout must outlive the member.
  Member(const FragmentLayout& layout, CodecPlan codecs, ClosingRule closing,
         std::vector<FragmentState> fragments, Ledger ledger = {}, Settings settings = {});

  // ---- views ----

  /// Promises to know no view before this one. Empty if a higher one has been sealed already.
  [[nodiscard]] std::optional<Sealed> seal(ViewNumber view);
  /// Before its first view: the connection that it was promised on is gone, and with it the answer.
  void forget_seal();
  /// Highest view sealed.
  [[nodiscard]] ViewNumber sealed() const { return sealed_; }
  enum class Entry {
    begun,
    evicted,  ///< this member's rounds are not those of the run: it must take the state from others
    ignored   ///< it has sealed another view since
  };
  /// Begins a view. Requires `fits(view)`, and that nothing that was delivered is being applied meanwhile.
  /// One that only reduces has no parameters that could be wrong: where it was not in the view of reference
  /// it begins at the newest round of the run's history.
  [[nodiscard]] Entry activate(const NewView& message, MemberIndex self);
  /// Whether this member's rounds are among those that the view goes on from. (One that only reduces has none
  /// before its first view.)
  [[nodiscard]] bool is_of_reference(const NewView& message, MemberIndex self) const {
    return view_.number == message.reference && (view_.number > 0 || trains(message.view.members.at(self)));
  }
  /// Whether a message from the network is a view of this layout with `self` in it.
  [[nodiscard]] bool fits(const NewView& message, MemberIndex self) const;
  [[nodiscard]] const View& view() const { return view_; }
  /// In force since the view has begun.
  [[nodiscard]] const Settings& settings() const { return settings_; }
  [[nodiscard]] MemberIndex self() const { return self_; }
  /// Between a seal and the view it was for nothing is produced and nothing accepted.
  [[nodiscard]] bool in_view() const { return view_.number > 0 && view_.number == sealed_; }

  // ---- rounds ----

  /// This member's own encoded chunk, once per round, also between views. `weight`: tokens behind it.
  /// `squares`, where outer.reject is on: the sum of the squares of what it decodes to. `samples`, with a
  /// fragment's first chunk: what it was trained on, at most `max_trained_on` ranges.
  void contribute(ChunkId chunk, Round round, const SharedBytes& bytes, std::uint64_t weight,
                  double squares = 0, const SampleSet& samples = {});
  /// The answer to a Reduce. What was measured may be empty where outer.reject is off.
  void reduced(ViewNumber view, ChunkId chunk, Round round, const SharedBytes& bytes,
               const Measured& measured = {});
  /// What the contributions to rounds that are complete here are like; each round once (OwnedHealth::take).
  [[nodiscard]] std::vector<RoundHealth> take_health() { return health_.take(); }
  /// The round is in the global parameters here; `samples` as it was delivered with them.
  void applied(FragmentId fragment, Round round, const Digest& chain, std::vector<SampleRange> samples = {});
  [[nodiscard]] const std::vector<FragmentState>& fragments() const { return applied_; }
  /// Up to these.
  [[nodiscard]] const Ledger& ledger() const { return ledger_; }
  /// Results of a round as far as they are here and remembered, null where not.
  [[nodiscard]] std::vector<SharedBytes> held(FragmentId fragment, Round round) const;

  /// A chunk from a peer of the view. Returns why the peer breaks the protocol, in which case nothing was
  /// changed. What belongs to another view is dropped without a word.
  [[nodiscard]] std::optional<std::string> receive(MemberIndex from, const ChunkMessage& message);
  void acknowledged(MemberIndex from, ViewNumber view, const ChunkKey& key);
  /// The peer's view has begun: what was sent before that, it dropped.
  void peer_begun(MemberIndex from, ViewNumber view);
  /// A new connection to the peer: repeats what it has not acknowledged and `mine` selects (all of it by
  /// default).
  template <class Selects>
  void repeat_to(MemberIndex peer, Selects mine) {
    for (const auto& [key, message] : unacknowledged_.at(peer)) {
      if (mine(key)) actions_.push_back(SendChunk{peer, message});
    }
  }

  // ---- time, and what the coordinator says of the others ----

  /// Closes chunks that have a quorum and whose grace is over, if there is a lease. Nothing else closes by
  /// quorum: only here it is known what time it is.
  void tick(Time now);
  void lease_until(Time end) { lease_end_ = end; }
  /// By fragment: rounds that all members of the view have applied.
  void lowest_applied(const std::vector<Round>& lowest);

  [[nodiscard]] std::vector<MemberAction> take_actions() { return std::exchange(actions_, {}); }
  /// Chunks sent and not yet acknowledged, all peers.
  [[nodiscard]] std::size_t unacknowledged() const;
  /// Encoded chunks in memory here: own, others' and results.
  [[nodiscard]] std::size_t chunks_held() const;
  /// A member of the view that lags further than this is taken out of it.
  static constexpr Round max_lag = 2;
  /// Rounds after the last applied one of which chunks are taken. A member has one of a fragment in flight,
  /// with whole-round overlap (methods/co2.h) two, so its own are always among them. Whoever is a round ahead
  /// of us may send a later one; we lag then, and it is dropped and asked for again.
  static constexpr Round window = max_lag + 1;
  /// Applied rounds whose results are kept in any case: for those who come back after a short absence.
  static constexpr Round always_kept = 2;
  static constexpr Round max_kept = always_kept + max_lag;
  /// Between a seal and its view nothing is forgotten, and what was delivered may still be applied.
  static constexpr Round max_held = max_kept + window;
  /// Chain hashes of so many rounds of each fragment are remembered.
  static constexpr std::size_t history_length = 16;

 private:
  struct Contribution {
    SharedBytes bytes;
    std::uint64_t weight = 0;
    double squares = 0;  ///< of this member's own
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
  void begin_anew(const NewView& message);
  void discard_unapplied();
  void forget_residuals(const View& next, MemberIndex next_self);
  void push_fixed(const NewView& message);
  void contribute_again();
  void send(MemberIndex peer, ChunkMessage message);
  void send_contribution(ChunkId chunk, Round round, const Contribution& own);
  void gather(MemberIndex from, ChunkId chunk, Round round, Contribution contribution);
  void close_by_quorum(ChunkId chunk, Round round, Gathering& gathering, Time now);
  void close(ChunkId chunk, Round round, Gathering& gathering);
  void keep_result(ChunkId chunk, Round round, Result result);
  void deliver(FragmentId fragment, Round round, const Results& results);
  void forget(FragmentId fragment);
  [[nodiscard]] const SharedBytes* held(const ChunkKey& key) const;
  [[nodiscard]] bool is_decided(ChunkId chunk, Round round) const;
  [[nodiscard]] Results& results_of(FragmentId fragment, Round round);

  const FragmentLayout& layout_;
  CodecPlan codecs_;
  ClosingRule closing_;
  std::vector<FragmentState> applied_;
  std::vector<std::vector<FragmentState>> history_;  ///< by fragment, oldest first, the last applied excluded
  Ledger ledger_;
  ViewNumber sealed_ = 0;
  View view_;
  Settings settings_;
  std::vector<ReplicaId> ids_;       ///< of the view's members
  std::vector<ReplicaId> trainers_;  ///< of those of them that contribute, in the same order
  MemberIndex self_ = 0;
  std::optional<Time> lease_end_;
  OwnedHealth health_;
  std::vector<Round> lowest_;             ///< by fragment, of all members of the view
  std::set<Place> fixed_;                 ///< decided before this view began
  std::map<Place, Contribution> own_;     ///< of rounds not yet applied here
  std::map<Place, Gathering> gathering_;  ///< of chunks owned here
  std::map<std::pair<Round, FragmentId>, Results>
      results_;  ///< of rounds not applied, and the last ones that are
  std::vector<std::map<ChunkKey, ChunkMessage>> unacknowledged_;  ///< by peer
  std::vector<bool> dropped_early_;  ///< by peer: sent chunks of rounds too far ahead, to be sent again
  std::vector<MemberAction> actions_;
};

}  // namespace isthmus::outer_sync::protocol
