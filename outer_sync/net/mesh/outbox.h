#pragma once
// What one peer is to be sent, and what of it is under way. It has no sockets and reads no clock.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "net/wire/frame.h"

namespace isthmus::outer_sync::transport {

/// Whichever lane is free takes the frame that is due first; it stays under way until it is acknowledged, and
/// waits again when its lane is lost. Every round of a run may take as many steps, so the round that begins
/// first is due first: `order` counts rounds as they begin, and a fragment that is due is never behind one
/// that has time. Frames of one order leave as they came.
class Outbox {
 public:
  using Time = std::chrono::steady_clock::duration;
  /// What the peer acknowledges: a chunk, or, without a key, that the view has begun at its sender. Of a
  /// relayed frame `beyond` is the end that is not the peer: whom the relay carries it to, or for.
  struct Receipt {
    protocol::ViewNumber view = 0;
    std::optional<protocol::ChunkKey> key;
    protocol::ReplicaId beyond = 0;
    friend auto operator<=>(const Receipt&, const Receipt&) = default;
  };

  explicit Outbox(std::size_t lanes) : lanes_(lanes) {}

  /// One that waits already is not put twice; one that is under way is sent once more. Order 0 is before all
  /// rounds.
  void put(Frame frame, std::uint64_t order, const Receipt& receipt);
  /// The frame that leaves next, now on its way by that lane; none when nothing waits.
  [[nodiscard]] std::optional<Frame> take(std::size_t lane, Time now);
  /// It need not be sent any more, as was said by that lane; without one, by the lane that it left by.
  void acknowledged(const Receipt& receipt, Time now, std::optional<std::size_t> by = std::nullopt);
  /// For a lane that is free while nothing waits: a frame that is long overdue on another lane, which has
  /// said nothing since. It is under way by this lane then. Where few frames all went by one lane and its
  /// path is broken, no other lane would ever deliver and so show it.
  [[nodiscard]] std::optional<Frame> take_overdue(std::size_t lane, Time now);
  /// The lane is lost: what was under way by it waits again.
  void lane_lost(std::size_t lane);
  /// A view has begun: chunks of older ones are of no use.
  void view_begun(protocol::ViewNumber view);
  /// What goes to that one by way of the peer, or is from it, need not be sent any more.
  void forget_relayed(protocol::ReplicaId beyond);
  void clear();

  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  /// Bytes that wait and that are under way, headers included.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Of these, those whose receipts have this `beyond`.
  [[nodiscard]] std::size_t bytes_relayed(protocol::ReplicaId beyond) const;
  [[nodiscard]] std::size_t under_way() const { return under_way_.size(); }
  /// Lanes by which nothing has been acknowledged since the oldest chunk that is under way there was sent, or
  /// one that another lane has taken over, long ago, while another lane delivers: the path of such a lane is
  /// broken, and TCP does not know yet.
  [[nodiscard]] std::vector<std::size_t> stalled(Time now) const;

 private:
  /// (order, number): in the order in which they leave.
  using Place = std::pair<std::uint64_t, std::uint64_t>;
  struct Waiting {
    Frame frame;
    Receipt receipt;
  };
  struct UnderWay {
    Frame frame;
    Place place;  ///< where it waited
    std::size_t lane;
    Time since;
  };
  struct Lane {
    Time heard = Time::min();       ///< the newest acknowledgement that came by it
    Time taken_over = Time::max();  ///< when the oldest left by it that another lane has taken over since
  };
  /// When the oldest frame left by each lane that it has not delivered; `Time::max()` without one.
  [[nodiscard]] std::vector<Time> oldest_unheard() const;
  template <class Drop>
  void drop_if(Drop drop);
  void wait(const Place& place, Frame frame, const Receipt& receipt);
  void count(const Receipt& receipt, std::size_t bytes);
  void discount(const Receipt& receipt, std::size_t bytes);
  [[nodiscard]] Time stall_limit() const;

  std::vector<Lane> lanes_;
  std::map<Place, Waiting> waiting_;
  std::map<Receipt, Place> waits_;  ///< where
  std::map<Receipt, UnderWay> under_way_;
  std::uint64_t number_ = 0;
  std::size_t bytes_ = 0;
  std::map<protocol::ReplicaId, std::size_t> relayed_;  ///< bytes, by Receipt::beyond
  Time usual_delivery_{};                               ///< from leaving to acknowledgement, smoothed
};

}  // namespace isthmus::outer_sync::transport
