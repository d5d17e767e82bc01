#pragma once
// Wire format of the state transfer: the fetcher's requests, the donor's replies, and their reassembly from
// untrusted frames. No sockets.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "isthmus/base/aligned.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages/chunks.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/state.h"
#include "net/wire/frame_reader.h"

namespace isthmus::outer_sync::transport {

// ---- streamed data ----

enum class StatePart : std::uint8_t {
  theta = 0,     ///< global parameters
  velocity = 1,  ///< momentum of the outer optimizer
  first_moment = 2,
  second_moment = 3,  ///< first and second moment of the inner optimizer
};
inline constexpr std::size_t state_parts = 4;
using StateParts = std::uint8_t;  ///< a set: bit i is for StatePart i
[[nodiscard]] constexpr StateParts set_of(StatePart part) {
  return static_cast<StateParts>(1U << static_cast<unsigned>(part));
}
inline constexpr StateParts agreed_parts = set_of(StatePart::theta) | set_of(StatePart::velocity);
inline constexpr StateParts moment_parts = set_of(StatePart::first_moment) | set_of(StatePart::second_moment);

using SharedFloats = std::shared_ptr<const AlignedVector<float>>;

/// A fragment's state after a round. Immutable, so that it can be streamed while training continues.
struct FragmentSnapshot {
  FragmentId fragment = 0;
  protocol::FragmentState at;
  /// By StatePart: one value per element of the fragment, or null for absent parts.
  std::array<SharedFloats, state_parts> values;
  std::uint64_t inner_steps = 0;      ///< behind the moments; 0 without them
  protocol::FragmentLedger ledger{};  ///< up to that round
  [[nodiscard]] StateParts parts() const;
};

// ---- on the wire ----

/// fetcher -> donor: requests these parts of a fragment.
struct StateRequest {
  FragmentId fragment = 0;
  StateParts parts = 0;
  protocol::Round from = 0;  ///< states before this round are useless
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, parts, from);
  }
};

/// fetcher -> donor: requests the results of a round. They arrive as chunk frames of kind result, with view
/// and sender 0, in chunk order; then StateDone.
struct RoundRequest {
  FragmentId fragment = 0;
  protocol::Round round = 0;  ///< from 1
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, round);
  }
};

/// donor -> fetcher: describes the data that follows: the parts in order, each in consecutive pieces; then
/// StateDone.
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

/// Precedes the fp32 values of a piece.
struct StateDataHeader {
  std::uint64_t offset;  ///< offset of the first value in the fragment, in elements
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

/// donor -> fetcher, instead of the data: that round is not here, either not yet or no longer.
struct StateGone {
  FragmentId fragment = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment);
  }
};

/// Maximum bytes of values in one piece.
inline constexpr std::size_t largest_piece = 256 * 1024;
/// Maximum length of a frame in a state stream.
inline constexpr std::size_t state_frame_limit = sizeof(StateDataHeader) + largest_piece;

// ---- donor ----

/// Read a fetcher's request. Throw Error(network) if it is not in the layout or invalid.
[[nodiscard]] StateRequest state_request_of(const ReceivedFrame& frame, const FragmentLayout& layout);
[[nodiscard]] RoundRequest round_request_of(const ReceivedFrame& frame, const FragmentLayout& layout);

// ---- fetcher ----

/// Reassembles one fragment from untrusted frames. Every length and position is checked before use; memory is
/// allocated only for what was requested.
class StateReceiver {
 public:
  StateReceiver(const FragmentLayout& layout, StateRequest request);
  /// Throws Error(network) with what is wrong with the frame.
  void take(const ReceivedFrame& frame);
  [[nodiscard]] bool complete() const { return complete_; }
  /// Call once; requires `complete()`. Returns nullopt if the donor has no state that is new enough.
  [[nodiscard]] std::optional<FragmentSnapshot> result();

 private:
  void begin(const StateHead& head);
  void add(std::span<const std::byte> piece);
  void end(const StateDone& done);
  void end(const StateGone& gone);
  void skip_absent_parts();

  StateRequest request_;
  std::uint64_t elements_;  ///< elements of the fragment in the layout
  protocol::FragmentState at_;
  std::uint64_t inner_steps_ = 0;
  protocol::FragmentLedger ledger_;
  std::array<std::shared_ptr<AlignedVector<float>>, state_parts> values_;
  std::size_t part_ = 0;      ///< next part expected
  std::uint64_t offset_ = 0;  ///< offset in that part, in elements
  bool begun_ = false, complete_ = false, gone_ = false;
};

/// Reassembles one round's results in the same way.
class RoundReceiver {
 public:
  /// The layout must outlive it.
  RoundReceiver(const FragmentLayout& layout, const protocol::CodecPlan& codecs, RoundRequest request);
  /// Throws Error(network) with what is wrong with the frame.
  void take(ReceivedFrame frame);
  [[nodiscard]] bool complete() const { return complete_; }
  /// Call once; requires `complete()`. Returns nullopt if the donor does not have the round.
  [[nodiscard]] std::optional<std::vector<protocol::SharedBytes>> result();

 private:
  void add(const ChunkHeader& header, protocol::SharedBytes bytes);
  void end(FragmentId fragment, bool gone);

  const FragmentLayout& layout_;
  quant::CodecSpec codec_;
  RoundRequest request_;
  FragmentLayout::ChunkSpan chunks_;
  std::vector<protocol::SharedBytes> results_;  ///< results received so far
  bool complete_ = false, gone_ = false;
};

}  // namespace isthmus::outer_sync::transport
