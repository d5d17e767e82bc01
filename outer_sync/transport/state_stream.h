#pragma once
// State transfer: a learner (a joiner, an observer) dials a donor and asks for fragments, and then for the
// rounds that were committed meanwhile; the donor streams what it has of them, no faster than it was told.
// Everything here runs on the io thread.

#include <array>
#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "isthmus/base/aligned.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/buffer_pool.h"
#include "isthmus/outer_sync/layout.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "transport/connection.h"
#include "transport/pacer.h"
#include "transport/peer_mesh.h"

namespace isthmus::outer_sync::transport {

// ---- what is streamed ----

enum class StatePart : std::uint8_t {
  theta = 0,     ///< global parameters
  velocity = 1,  ///< of the outer optimizer
  first_moment = 2,
  second_moment = 3,  ///< of the inner optimizer
};
inline constexpr std::size_t state_parts = 4;
using StateParts = std::uint8_t;  ///< a set: bit i stands for StatePart i
[[nodiscard]] constexpr StateParts set_of(StatePart part) {
  return static_cast<StateParts>(1U << static_cast<unsigned>(part));
}
inline constexpr StateParts agreed_parts = set_of(StatePart::theta) | set_of(StatePart::velocity);
inline constexpr StateParts moment_parts = set_of(StatePart::first_moment) | set_of(StatePart::second_moment);

using SharedFloats = std::shared_ptr<const AlignedVector<float>>;

/// What a fragment is after a round. Immutable, so that it may be streamed while training goes on.
struct FragmentSnapshot {
  FragmentId fragment = 0;
  protocol::FragmentState at;
  /// By StatePart: as many values as the fragment has elements, or null for what is not in it.
  std::array<SharedFloats, state_parts> values;
  std::uint64_t inner_steps = 0;  ///< behind the moments; 0 without them
  [[nodiscard]] StateParts parts() const;
};

// ---- on the wire ----

/// learner -> donor: all of these parts, please.
struct StateRequest {
  FragmentId fragment = 0;
  StateParts parts = 0;
  protocol::Round from = 0;  ///< a state before this round is of no use
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, parts, from);
  }
};

/// learner -> donor: the results of this round, please. They come as chunk frames, of kind result and with
/// view and sender 0, in chunk order; then StateDone.
struct RoundRequest {
  FragmentId fragment = 0;
  protocol::Round round = 0;  ///< from 1
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, round);
  }
};

/// donor -> learner: what follows. Then come the parts in their order, each in pieces from its first value to
/// its last, and StateDone.
struct StateHead {
  FragmentId fragment = 0;
  protocol::FragmentState at;
  std::uint64_t elements = 0;
  StateParts parts = 0;
  std::uint64_t inner_steps = 0;  ///< behind the moments; 0 without them
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, at, elements, parts, inner_steps);
  }
};

/// In front of a piece's fp32 values.
struct StateDataHeader {
  std::uint64_t offset;  ///< of the first of them in the fragment, in elements
  FragmentId fragment;
  StatePart part;
  std::array<std::uint8_t, 3> zero;
};
static_assert(sizeof(StateDataHeader) == 16);

struct StateDone {
  FragmentId fragment = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment);
  }
};

/// donor -> learner, in place of an answer: that round is not here, not yet or not any more.
struct StateGone {
  FragmentId fragment = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment);
  }
};

/// Bytes of values in one piece, at most.
inline constexpr std::size_t largest_piece = 256 * 1024;
/// No frame of a state stream is longer.
inline constexpr std::size_t state_frame_limit = sizeof(StateDataHeader) + largest_piece;

// ---- donor ----

/// Bytes of values that a piece should have: what fills the bucket, from 4 KiB (so that headers stay below 1
/// %) to `largest_piece`.
[[nodiscard]] std::size_t piece_of(const Pacer& pacer);

/// Streams fragments and rounds over a connection, of which never more than one piece or chunk waits to be
/// written.
class StateSender {
 public:
  StateSender(ConnectionPtr connection, std::shared_ptr<Pacer> pacer);
  /// Throws Error(network) when the connection has ended, or takes longer over one piece than a learner may.
  [[nodiscard]] asio::awaitable<void> send(FragmentSnapshot snapshot);
  /// The results of a round in chunk order. Throws as above.
  [[nodiscard]] asio::awaitable<void> send(RoundRequest round, const FragmentLayout& layout,
                                           std::vector<protocol::SharedBytes> results);
  void send_gone(FragmentId fragment);

 private:
  [[nodiscard]] asio::awaitable<void> send_part(const FragmentSnapshot& snapshot, StatePart part);
  [[nodiscard]] asio::awaitable<void> send_piece(Frame piece);

  ConnectionPtr connection_;
  std::shared_ptr<Pacer> pacer_;
};

/// Takes a snapshot with all parts that the request names; an Error that it throws ends the connection.
using SnapshotSource = std::function<asio::awaitable<FragmentSnapshot>(StateRequest)>;

/// The codec bytes of a round's results in chunk order. Empty, or with nulls, where they are not all here
/// (any more).
using RoundSource = std::function<std::vector<protocol::SharedBytes>(FragmentId, protocol::Round)>;

/// Answers a learner's requests one after the other until its connection ends (asio::system_error) or it
/// breaks the protocol or asks for nothing during a minute (Error(network)). The layout must outlive it.
[[nodiscard]] asio::awaitable<void> serve_learner(ConnectionPtr connection, const FragmentLayout& layout,
                                                  std::shared_ptr<Pacer> pacer, SnapshotSource snapshots,
                                                  RoundSource rounds);

// ---- learner ----

/// Puts together one fragment from frames that need not be what they should. Every length and place is
/// checked before it is used; memory is taken for what was asked for and nothing else.
class StateReceiver {
 public:
  StateReceiver(const FragmentLayout& layout, StateRequest request);
  /// Throws Error(network) saying what is wrong with the frame.
  void take(const Connection::Received& frame);
  [[nodiscard]] bool complete() const { return complete_; }
  /// Requires `complete()`. To be called once. Nothing where the donor has no state that is new enough.
  [[nodiscard]] std::optional<FragmentSnapshot> result();

 private:
  void begin(const StateHead& head);
  void add(std::span<const std::byte> piece);
  void end(const StateDone& done);
  void end(const StateGone& gone);
  void skip_absent_parts();

  StateRequest request_;
  std::uint64_t elements_;  ///< of the fragment, as the layout has it
  protocol::FragmentState at_;
  std::uint64_t inner_steps_ = 0;
  std::array<std::shared_ptr<AlignedVector<float>>, state_parts> values_;
  std::size_t part_ = 0;      ///< that comes next
  std::uint64_t offset_ = 0;  ///< in it, in elements
  bool begun_ = false, complete_ = false, gone_ = false;
};

/// Puts together one round's results in the same way.
class RoundReceiver {
 public:
  /// The layout must outlive it.
  RoundReceiver(const FragmentLayout& layout, const protocol::CodecPlan& codecs, RoundRequest request);
  /// Throws Error(network) saying what is wrong with the frame.
  void take(Connection::Received frame);
  [[nodiscard]] bool complete() const { return complete_; }
  /// Requires `complete()`. To be called once. Nothing where the donor has not got the round.
  [[nodiscard]] std::optional<std::vector<protocol::SharedBytes>> result();

 private:
  void add(const ChunkHeader& header, protocol::SharedBytes bytes);
  void end(FragmentId fragment, bool gone);

  const FragmentLayout& layout_;
  quant::CodecSpec codec_;
  RoundRequest request_;
  FragmentLayout::ChunkSpan chunks_;
  std::vector<protocol::SharedBytes> results_;  ///< so far
  bool complete_ = false, gone_ = false;
};

/// The donor cannot be reached, is gone or silent: it may be asked again. All other errors say that what it
/// sent does not fit.
class DonorLost : public Error {
 public:
  explicit DonorLost(const std::string& message) : Error(ErrorKind::network, message) {}
};

/// How long a learner waits for a donor.
struct StatePatience {
  Connection::Clock::duration
      head;  ///< from the request on: the donor's trainer may be in the middle of a step
  Connection::Clock::duration frame;  ///< from then on, for every frame
};

/// Dials the donor as `self` and shows it the token. Throws DonorLost or Error(network) naming the donor when
/// it cannot be reached or does not answer, or is somebody else.
[[nodiscard]] asio::awaitable<ConnectionPtr> dial_donor(asio::io_context& io, PeerInfo donor,
                                                        protocol::ReplicaId self, Digest token,
                                                        LinkOptions link, WireCounters& counters,
                                                        Trace& trace);

/// Asks for a fragment and waits until it is there; nothing where the donor has it only as it was before
/// `request.from`. Throws DonorLost when the donor is lost or falls silent and Error(network) when it breaks
/// the protocol; the connection is then closed and another donor may be asked. The layout must outlive it.
[[nodiscard]] asio::awaitable<std::optional<FragmentSnapshot>> fetch_fragment(ConnectionPtr donor,
                                                                              const FragmentLayout& layout,
                                                                              StateRequest request,
                                                                              StatePatience patience);

/// Asks for the results of a round and waits until they are there, in memory of `buffers`; nothing where the
/// donor has not got them. Throws as above.
[[nodiscard]] asio::awaitable<std::optional<std::vector<protocol::SharedBytes>>> fetch_round(
    ConnectionPtr donor, const FragmentLayout& layout, protocol::CodecPlan codecs, RoundRequest request,
    StatePatience patience, BufferPool buffers);

}  // namespace isthmus::outer_sync::transport
