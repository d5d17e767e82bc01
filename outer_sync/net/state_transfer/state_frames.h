#pragma once
// State transfer on the wire: what a fetcher asks a donor for, what comes back, and how that is put together
// from frames that need not be what they should. It has no sockets.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "isthmus/base/aligned.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "net/wire/frame_reader.h"

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
  std::uint64_t inner_steps = 0;      ///< behind the moments; 0 without them
  protocol::FragmentLedger ledger{};  ///< up to that round
  [[nodiscard]] StateParts parts() const;
};

// ---- on the wire ----

/// fetcher -> donor: all of these parts, please.
struct StateRequest {
  FragmentId fragment = 0;
  StateParts parts = 0;
  protocol::Round from = 0;  ///< a state before this round is of no use
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, parts, from);
  }
};

/// fetcher -> donor: the results of this round, please. They come as chunk frames, of kind result and with
/// view and sender 0, in chunk order; then StateDone.
struct RoundRequest {
  FragmentId fragment = 0;
  protocol::Round round = 0;  ///< from 1
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, round);
  }
};

/// donor -> fetcher: what follows. Then come the parts in their order, each in pieces from its first value to
/// its last, and StateDone.
struct StateHead {
  FragmentId fragment = 0;
  protocol::FragmentState at;
  std::uint64_t elements = 0;
  StateParts parts = 0;
  std::uint64_t inner_steps = 0;  ///< behind the moments; 0 without them
  protocol::FragmentLedger ledger{};
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, at, elements, parts, inner_steps, ledger);
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

/// donor -> fetcher, in place of an answer: that round is not here, not yet or not any more.
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

/// What a fetcher asks for. Throw Error(network) for what is not in the layout, or not there to be asked for.
[[nodiscard]] StateRequest state_request_of(const ReceivedFrame& frame, const FragmentLayout& layout);
[[nodiscard]] RoundRequest round_request_of(const ReceivedFrame& frame, const FragmentLayout& layout);

// ---- fetcher ----

/// Puts together one fragment from frames that need not be what they should. Every length and place is
/// checked before it is used; memory is taken for what was asked for and nothing else.
class StateReceiver {
 public:
  StateReceiver(const FragmentLayout& layout, StateRequest request);
  /// Throws Error(network) saying what is wrong with the frame.
  void take(const ReceivedFrame& frame);
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
  protocol::FragmentLedger ledger_;
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
  void take(ReceivedFrame frame);
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

}  // namespace isthmus::outer_sync::transport
