#pragma once
// Pairwise exchanges of fragments (outer.gossip_every) as a pure state machine next to Member: calls go in,
// actions come out. In an exchange the trainers of the view form pairs, and the two of a pair send each other
// their encoded chunks. An exchange has no owner, result or chain, and nothing that all members agree on
// depends on it: a lost one is not repeated. Rules: docs/protocol.md, "Exchanges in pairs". Called on the io
// thread, as Member is.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages/chunks.h"
#include "isthmus/outer_sync/protocol/messages/views.h"

namespace isthmus::outer_sync::protocol {

/// The other trainer of `self`'s pair when this fragment is exchanged at this agreed step; nullopt if `self`
/// does not train, or has none because the number of trainers is odd. Every two trainers are equally likely
/// to be a pair, and all members draw the same pairs.
[[nodiscard]] std::optional<MemberIndex> partner_of(const View& view, MemberIndex self, FragmentId fragment,
                                                    std::uint64_t step);

/// The partner's encoded chunks of one exchange, in chunk order.
struct Exchanged {
  FragmentId fragment;
  std::uint64_t step;
  std::vector<SharedBytes> chunks;
  std::uint64_t weight = 0;  ///< tokens behind them
};
/// Earlier exchanges of the fragment are over: what of them is not sent yet need not be sent.
struct DropUnsent {
  FragmentId fragment;
  std::uint64_t before;  ///< agreed step
};
using ExchangeAction = std::variant<SendChunk, SendAck, Exchanged, DropUnsent>;

/// In messages of an exchange, `ChunkKey::round` is its agreed step.
class Exchanges {
 public:
  /// Exchanges of one fragment that are kept from one partner that is ahead.
  static constexpr std::size_t max_kept = 2;

  /// The layout must outlive it.
  Exchanges(const FragmentLayout& layout, const CodecPlan& codecs);

  /// Forgets the exchanges of the last view.
  void begin_view(const View& view, MemberIndex self);
  /// Enters this member's encoded chunk. The first one of a later step begins that exchange, and ends the
  /// fragment's earlier ones here. Chunks without a partner, or before the first view, are dropped.
  /// `weight`: tokens behind the fragment since it was last sent in a round.
  void send(ChunkId chunk, std::uint64_t step, const SharedBytes& bytes, std::uint64_t weight,
            const SharedBytes& packed = nullptr);

  /// The fragment's exchange of this step is over here, as if a later one had begun.
  void end(FragmentId fragment, std::uint64_t step);

  /// The next four are like Member's.
  [[nodiscard]] std::optional<std::string> receive(MemberIndex from, const ChunkMessage& message);
  void acknowledged(MemberIndex from, ViewNumber view, const ChunkKey& key);
  void peer_begun(MemberIndex from, ViewNumber view);
  template <class Selects>
  void repeat_to(MemberIndex peer, Selects mine) {
    for (const auto& [key, sent] : unacknowledged_) {
      if (sent.peer == peer && mine(key)) actions_.push_back(SendChunk{peer, sent.message});
    }
  }

  [[nodiscard]] std::vector<ExchangeAction> take_actions() { return std::exchange(actions_, {}); }
  /// Encoded chunks in memory.
  [[nodiscard]] std::size_t chunks_held() const;

 private:
  using Place = std::pair<FragmentId, std::uint64_t>;  ///< the second is the agreed step
  struct Received {
    MemberIndex from = 0;
    std::vector<SharedBytes> chunks;
    std::uint64_t weight = 0;
    std::size_t missing = 0;
  };
  /// The exchange of `step` if it has begun here; otherwise parts before `step` are too late.
  struct Current {
    std::uint64_t step = 0;
    bool begun = false;
  };
  struct Sent {
    MemberIndex peer;
    ChunkMessage message;
  };

  [[nodiscard]] std::optional<std::string> check(MemberIndex from, const ChunkMessage& message) const;
  [[nodiscard]] Received* room_for(const Place& place, MemberIndex from);
  void begin(const Place& place);
  void complete(const Place& place);

  const FragmentLayout& layout_;
  CodecPlan codecs_;
  View view_;
  MemberIndex self_ = 0;
  std::vector<Current> current_;        ///< by fragment
  std::map<Place, Received> received_;  ///< of the current exchange and later ones
  std::map<ChunkKey, Sent> unacknowledged_;
  std::vector<ExchangeAction> actions_;
};

}  // namespace isthmus::outer_sync::protocol
