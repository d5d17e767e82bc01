#pragma once
// Frames for one peer: queued, and in flight. No sockets, no clock.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "net/wire/frame.h"

namespace isthmus::outer_sync::transport {

/// The first free lane takes the frame that is due first. The frame stays in flight until it is acknowledged,
/// and is queued again if its lane is lost. `order` numbers rounds by their beginning; exchanges in pairs
/// have the last one. All rounds may take the same number of steps, so the round that began first is due
/// first, and its frames leave first. Frames of equal order leave in the order of `put`.
class Outbox {
 public:
  using Time = std::chrono::steady_clock::duration;
  /// Identifies what the peer acknowledges: a chunk or, without `key`, the sender's `begun` of this view. For
  /// a relayed frame, `beyond` is the end that is not the peer: its destination or its origin.
  struct Receipt {
    protocol::ViewNumber view = 0;
    std::optional<protocol::ChunkKey> key;
    protocol::ReplicaId beyond = 0;
    friend auto operator<=>(const Receipt&, const Receipt&) = default;
  };

  explicit Outbox(std::size_t lanes) : lanes_(lanes) {}

  /// Queues a frame. A frame that is queued already is not queued twice; one in flight is sent again. Order 0
  /// comes before all rounds.
  void put(Frame frame, std::uint64_t order, const Receipt& receipt);
  /// The frame to send next, from now on in flight on that lane; nullopt if none is queued.
  [[nodiscard]] std::optional<Frame> take(std::size_t lane, Time now);
  /// The frame need not be sent any more. `by`: the lane on which the acknowledgement came; without it, the
  /// lane on which the frame left.
  void acknowledged(const Receipt& receipt, Time now, std::optional<std::size_t> by = std::nullopt);
  /// For a free lane while nothing is queued: a frame long overdue on another lane, which has acknowledged
  /// nothing since. It is then in flight on this lane. Otherwise, if one lane carried the few frames that
  /// there are and its path broke, no other lane would deliver anything and so reveal it.
  [[nodiscard]] std::optional<Frame> take_overdue(std::size_t lane, Time now);
  /// The lane is lost: its frames in flight are queued again.
  void lane_lost(std::size_t lane);
  /// A view has begun: drops chunks of older views.
  void view_begun(protocol::ViewNumber view);
  /// Drops `sender`'s exchanged chunks from `chunks` of exchanges before this agreed step.
  void drop_exchanges(protocol::MemberIndex sender, FragmentLayout::ChunkSpan chunks, std::uint64_t before);
  /// Drops frames that the peer relays to `beyond`, or that come from it.
  void forget_relayed(protocol::ReplicaId beyond);
  void clear();

  /// The order of exchanges in pairs: they come after all rounds, because nothing waits for them.
  static constexpr auto after_all_rounds = std::numeric_limits<std::uint64_t>::max();

  [[nodiscard]] bool empty() const { return queue_.empty(); }
  /// Whether frames of a lower order are queued.
  [[nodiscard]] bool has_rounds() const {
    return !queue_.empty() && queue_.begin()->first.first < after_all_rounds;
  }
  /// Bytes queued and in flight, headers included.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// The part of them with this `beyond` in the receipt.
  [[nodiscard]] std::size_t bytes_relayed(protocol::ReplicaId beyond) const;
  [[nodiscard]] std::size_t under_way() const { return under_way_.size(); }
  /// Lanes with no acknowledgement since the oldest frame in flight there (or taken over by another lane) was
  /// sent, long ago, although another lane delivers: their path is broken, and TCP does not know yet.
  [[nodiscard]] std::vector<std::size_t> stalled(Time now) const;
  /// A lane never counts as stalled before. Until something is acknowledged, the usual delivery is unknown.
  void never_stalls_within(Time limit) { shortest_stall_ = limit; }

 private:
  /// (order, number): the order in which frames leave.
  using Place = std::pair<std::uint64_t, std::uint64_t>;
  struct Queued {
    Frame frame;
    Receipt receipt;
  };
  struct UnderWay {
    Frame frame;
    Place place;  ///< its place in the queue
    std::size_t lane;
    Time since;
  };
  struct Lane {
    Time heard = Time::min();       ///< latest acknowledgement on this lane
    Time taken_over = Time::max();  ///< when its oldest frame that another lane took over was sent
  };
  /// By lane: when its oldest undelivered frame was sent; `Time::max()` if all are delivered.
  [[nodiscard]] std::vector<Time> oldest_unheard() const;
  template <class Drop>
  void drop_if(Drop drop);
  void enqueue(const Place& place, Frame frame, const Receipt& receipt);
  void count(const Receipt& receipt, std::size_t bytes);
  void discount(const Receipt& receipt, std::size_t bytes);
  [[nodiscard]] Time stall_limit() const;

  std::vector<Lane> lanes_;
  std::map<Place, Queued> queue_;
  std::map<Receipt, Place> places_;  ///< place of each queued frame
  std::map<Receipt, UnderWay> under_way_;
  std::uint64_t number_ = 0;
  std::size_t bytes_ = 0;
  std::map<protocol::ReplicaId, std::size_t> relayed_;  ///< bytes, by Receipt::beyond
  Time shortest_stall_ = std::chrono::seconds(1);
  Time usual_delivery_{};  ///< from sending to acknowledgement, smoothed
};

}  // namespace isthmus::outer_sync::transport
