#pragma once
// Frames: a fixed header, a checksum if the connection is not encrypted, then a body. The body's length is
// checked against the connection's limit before any memory is allocated for it. Little-endian.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "isthmus/quant/lossless.h"

namespace isthmus::outer_sync::transport {

enum class FrameType : std::uint16_t {
  control = 1,
  peer_hello = 2,
  chunk = 3,
  ack = 4,
  state_request = 5,  ///< fetcher -> donor; this and the next five: state_frames.h
  state_head = 6,
  state_data = 7,
  state_done = 8,
  round_request = 9,
  state_gone = 10,
  begun = 11,        ///< a view has begun at the sender: its number, as u64
  begun_heard = 12,  ///< acknowledges `begun`
  relayed = 13,      ///< RelayHeader, then another frame without its own header
  hail = 14,         ///< within `relayed`, like the next two: Hail
  relay_taken = 15,  ///< the relay has taken a chunk, named as in an ack; for a `begun`, kind is 0
  relay_lost = 16,   ///< the relay has no connection to that end and has lost its frames
  arrived = 17,      ///< Arrived
  enrolment = 18,    ///< from a machine without a certificate: tls::EnrolmentRequest; and the EnrolmentAnswer
  preflight = 19,    ///< before a run (preflight.h)
  bridge_wanted = 20  ///< a peer with a port asks a member without one to dial it: BridgeWanted
};

struct FrameHeader {
  static constexpr std::uint32_t expected_magic = 0x48545349;  // "ISTH"
  std::uint32_t magic = expected_magic;
  FrameType type = FrameType::control;
  std::uint16_t check = 0;   ///< `check_of` if a checksum follows the header; 0: none does
  std::uint32_t length = 0;  ///< length of the body in bytes
};
static_assert(sizeof(FrameHeader) == 12);
/// CRC32C of the header and the body.
using Checksum = std::uint32_t;

/// Precedes a chunk. Then follow the contributors' ids (8 bytes each), norms (16 bytes: id, fp64), samples
/// trained on (32 bytes: id, range), and the chunk's bytes. An acknowledgement is this header alone, with
/// zeros where the fields say so.
struct ChunkHeader {
  std::uint64_t view;
  std::uint64_t round;
  std::uint64_t weight;  ///< tokens behind a contribution or an exchange; otherwise 0
  std::uint32_t chunk;
  std::uint16_t sender;        ///< member that made the chunk, also in its acknowledgement
  std::uint16_t contributors;  ///< number of ids that follow; only in results
  std::uint8_t kind;           ///< protocol::ChunkKind
  std::uint8_t packing;        ///< quant::Lossless: how the bytes are packed; 0 in acknowledgements
  std::uint16_t norms;         ///< number of norms that follow the ids; only in results with outer.reject
  std::uint32_t trained_on;    ///< number of ranges that follow the norms; only in a fragment's first chunk
};
static_assert(sizeof(ChunkHeader) == 40);
static_assert(sizeof(protocol::TrainedOn) == 32);
static_assert(sizeof(protocol::SquaredNorm) == 16);

[[nodiscard]] inline ChunkHeader header_of(protocol::ViewNumber view, const protocol::ChunkKey& key) {
  return {.view = view,
          .round = key.round,
          .weight = 0,
          .chunk = key.chunk,
          .sender = key.sender,
          .contributors = 0,
          .kind = static_cast<std::uint8_t>(key.kind),
          .packing = static_cast<std::uint8_t>(quant::Lossless::none),
          .norms = 0,
          .trained_on = 0};
}
[[nodiscard]] inline ChunkHeader header_of(const protocol::ChunkMessage& message, quant::Lossless packing) {
  auto header = header_of(message.view, message.key);
  header.weight = message.weight;
  header.contributors = static_cast<std::uint16_t>(message.contributors.size());
  header.norms = static_cast<std::uint16_t>(message.norms.size());
  header.trained_on = static_cast<std::uint32_t>(message.trained_on.size());
  header.packing = static_cast<std::uint8_t>(packing);
  return header;
}
[[nodiscard]] inline protocol::ChunkKey key_of(const ChunkHeader& header) {
  return {header.round, header.chunk, header.sender, static_cast<protocol::ChunkKind>(header.kind)};
}

/// Precedes a frame that a third member relays. In the relay's own messages to one end, `from` is the other
/// end.
struct RelayHeader {
  protocol::ReplicaId from, to;
  FrameType inner;
  std::uint16_t zero = 0;
  /// In a chunk, a `begun` and the relay's answers to them: low bits of the sender's Hail::session. Frames
  /// that the relay took before the path was lost may be lost too.
  std::uint32_t session = 0;
};
static_assert(sizeof(RelayHeader) == 24);

/// From one end to the other through the relay: reports that this end knows of the relay, and whether it has
/// received the other's hail. Nothing else is sent before both have: all three members then know of the
/// relay.
struct Hail {
  std::uint64_t session = 0;  ///< the sender's session; a new one whenever it has lost the path
  std::uint64_t heard = 0;    ///< the receiver's session, as last received; 0: none
  bool asks = false;          ///< asks for an answer
  template <class Archive>
  void serialize(Archive& ar) {
    ar(session, heard, asks);
  }
};

/// Bytes that have arrived on the lanes between two ends, as TCP counts them; sent every few tens of
/// milliseconds while data arrives. The sender derives the path's rate and queue from it. Acknowledgements do
/// not suffice, since they may have waited in a queue on the way back.
struct Arrived {
  struct Lane {
    std::uint64_t connection = 0;  ///< 2 * PeerHello::number, plus 1 if the end with the higher id dialled
    std::uint64_t bytes = 0;       ///< bytes since the connection began
    template <class Archive>
    void serialize(Archive& ar) {
      ar(connection, bytes);
    }
  };
  std::uint64_t at = 0;  ///< nanoseconds, by the steady clock of the end that reports
  std::vector<Lane> lanes;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(at, lanes);
  }
};

/// Role of the dialling end.
enum class PeerRole : std::uint8_t {
  member = 0,
  fetcher = 1,        ///< a joining member or an observer; wants the state, need not be in a view
  bridge_seeker = 2,  ///< a fetcher that wants to reach another member, which has no port
  bridge_end = 3,     ///< that member, which was asked to dial (`bridge_wanted`)
};

/// First frame on a bulk connection, in both directions: each end shows that it belongs to this run and is
/// the expected replica. A lane is up once both have. No view is named: connections outlive views.
///
/// Either end may dial, and both may at once. `replaces` shows whether a new connection replaces a lost one,
/// or has only crossed another.
struct PeerHello {
  Digest token;
  protocol::ReplicaId from = 0, to = 0;
  std::uint16_t lane = 0;
  PeerRole role = PeerRole::member;
  std::uint64_t number = 0;  ///< number of this connection at its dialler, from 1; 0 in the answer
  std::uint64_t replaces =
      0;  ///< newest connection of this lane that the other end dialled and that was up here
  std::uint64_t beyond = 0;  ///< bridge_seeker: id of the member to reach; bridge_end: BridgeWanted::number
  template <class Archive>
  void serialize(Archive& ar) {
    ar(token, from, to, lane, role, number, replaces, beyond);
  }
};

/// Asks the receiver to dial the sender, which joins that connection to another one: a bridge.
struct BridgeWanted {
  std::uint64_t number = 0;  ///< which the dialled connection's hello names
  template <class Archive>
  void serialize(Archive& ar) {
    ar(number);
  }
};

struct Frame {
  FrameType type = FrameType::control;
  Bytes head;                  ///< owned: a chunk's header and lists; all of other frames
  protocol::SharedBytes body;  ///< codec bytes, packed or not, shared; may be null
};

/// Check value of the header, computed without its `check`, so that a damaged length is noticed before
/// waiting for the body. Never 0.
[[nodiscard]] std::uint16_t check_of(FrameHeader header);

/// Sent before a frame's body. If the frame is not `checked`, only the header is sent.
struct FrameFront {
  FrameHeader header;
  Checksum checksum = 0;
  [[nodiscard]] std::span<const std::byte> bytes() const {
    const auto all = std::as_bytes(std::span(this, 1));
    return header.check == 0 ? all.first(sizeof header) : all;
  }
};
static_assert(sizeof(FrameFront) == sizeof(FrameHeader) + sizeof(Checksum));
[[nodiscard]] FrameFront front_of(const Frame& frame, bool checked);

/// Size on the wire in bytes, without a checksum.
[[nodiscard]] inline std::size_t size_of(const Frame& frame) {
  return sizeof(FrameHeader) + frame.head.size() + (frame.body ? frame.body->size() : 0);
}

/// The largest frame that a peer can legally send if no chunk has more than `codec_bytes`.
[[nodiscard]] inline constexpr std::size_t largest_chunk_frame(std::size_t codec_bytes) {
  return sizeof(ChunkHeader) +
         protocol::max_members * (sizeof(protocol::ReplicaId) + sizeof(protocol::SquaredNorm) +
                                  protocol::max_trained_on * sizeof(protocol::TrainedOn)) +
         codec_bytes;
}

/// Bytes of a header; its layout in memory is that on the wire.
template <class Struct>
[[nodiscard]] Bytes bytes_of(const Struct& value) {
  static_assert(std::has_unique_object_representations_v<Struct>, "padding would go out uninitialised");
  Bytes bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

/// A chunk's header and the lists that follow it.
[[nodiscard]] Bytes chunk_head(const ChunkHeader& header, std::span<const protocol::ReplicaId> contributors,
                               std::span<const protocol::SquaredNorm> norms,
                               std::span<const protocol::TrainedOn> trained_on);
[[nodiscard]] Frame hello_frame(const PeerHello& hello);
[[nodiscard]] Frame control_frame(const protocol::ControlMessage& message);
/// `packed`, if given, is sent instead of the message's bytes.
[[nodiscard]] Frame chunk_frame(const protocol::ChunkMessage& message,
                                const protocol::SharedBytes& packed = nullptr);
[[nodiscard]] Frame ack_frame(protocol::ViewNumber view, const protocol::ChunkKey& key);
/// Puts a RelayHeader in front of the frame.
[[nodiscard]] Frame relayed_frame(protocol::ReplicaId from, protocol::ReplicaId to, Frame frame,
                                  std::uint32_t session = 0);
[[nodiscard]] Frame begun_frame(protocol::ViewNumber view);
[[nodiscard]] Frame begun_heard_frame(protocol::ViewNumber view);

/// Limit of a frame from a peer that has not sent a valid hello.
inline constexpr std::size_t unauthenticated_limit = 64 * 1024;
/// Limit of a member's control message: enough for a layout of 400,000 fragments, or a summary.
inline constexpr std::size_t control_limit = 32 * 1024 * 1024;

}  // namespace isthmus::outer_sync::transport
