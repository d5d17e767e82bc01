#pragma once
// Frames: a fixed header, a checksum where the connection is not encrypted, then a body whose length is
// checked against what this connection may carry before a byte of it is allocated. Little-endian.

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
  state_request = 5,  ///< fetcher -> donor; this and what follows are in state_frames.h
  state_head = 6,
  state_data = 7,
  state_done = 8,
  round_request = 9,
  state_gone = 10,
  begun = 11,        ///< a view has begun at the sender: u64, its number
  begun_heard = 12,  ///< acknowledges that
  relayed = 13,      ///< RelayHeader, and one of the frames above or below behind it, without its own header
  hail = 14,         ///< within `relayed`, like what follows: Hail
  relay_taken = 15,  ///< the relay has a chunk, named as in an acknowledgement; of a `begun`, kind 0
  relay_lost = 16,   ///< the relay has no connection there, and what it had for that end is gone
  arrived = 17,      ///< Arrived
  enrolment = 18,    ///< from who has no certificate yet: tls::EnrolmentRequest, and the EnrolmentAnswer
  preflight = 19     ///< before a run (preflight.h)
};

struct FrameHeader {
  static constexpr std::uint32_t expected_magic = 0x48545349;  // "ISTH"
  std::uint32_t magic = expected_magic;
  FrameType type = FrameType::control;
  std::uint16_t check = 0;   ///< `check_of`, where a checksum comes between header and body; 0: none does
  std::uint32_t length = 0;  ///< of the body, in bytes
};
static_assert(sizeof(FrameHeader) == 12);
/// CRC32C of the header and the body.
using Checksum = std::uint32_t;

/// In front of a chunk; then come the ids of its contributors, eight bytes each, norms of sixteen, an id and
/// an fp64, what it was trained on in pieces of 32, an id and a range of samples, and its bytes. An
/// acknowledgement is this header alone, with zeros where it says so.
struct ChunkHeader {
  std::uint64_t view;
  std::uint64_t round;
  std::uint64_t weight;  ///< of a contribution: tokens behind it; 0 in results and acknowledgements
  std::uint32_t chunk;
  std::uint16_t sender;        ///< who made the chunk, also in its acknowledgement
  std::uint16_t contributors;  ///< ids that follow; only a result has any
  std::uint8_t kind;           ///< protocol::ChunkKind
  std::uint8_t packing;        ///< quant::Lossless: how the bytes are packed; 0 in acknowledgements
  std::uint16_t norms;         ///< that follow the ids; only a result where outer.reject is on has any
  std::uint32_t trained_on;    ///< ranges that follow the norms; only a fragment's first chunk has any
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

/// In front of what goes by way of a third member. What the relay itself says to one end is `from` the other.
struct RelayHeader {
  protocol::ReplicaId from, to;
  FrameType inner;
  std::uint16_t zero = 0;
  /// Of a chunk or a `begun`, and of what the relay answers to it: the low bits of its sender's
  /// Hail::session. What was taken before the way was lost may be lost too.
  std::uint32_t session = 0;
};
static_assert(sizeof(RelayHeader) == 24);

/// From one end to the other, by the relay: that this end has been told of the relay, and has heard the other
/// one. Nothing else is sent before that: all three know of the relay then.
struct Hail {
  std::uint64_t session = 0;  ///< of the sender; another one whenever the way was lost to it
  std::uint64_t heard = 0;    ///< of the receiver, the last that has come; 0: none
  bool asks = false;          ///< for an answer
  template <class Archive>
  void serialize(Archive& ar) {
    ar(session, heard, asks);
  }
};

/// What has come by the lanes between two ends, as TCP counts: said every few ten milliseconds while anything
/// comes. The sender learns from it how fast the line is and how long its queue: acknowledgements may have
/// waited in the queue of the way back.
struct Arrived {
  struct Lane {
    std::uint64_t connection = 0;  ///< twice PeerHello::number, and one more if the higher id dialled it
    std::uint64_t bytes = 0;       ///< since it began
    template <class Archive>
    void serialize(Archive& ar) {
      ar(connection, bytes);
    }
  };
  std::uint64_t at = 0;  ///< nanoseconds, by the receiver's own steady clock
  std::vector<Lane> lanes;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(at, lanes);
  }
};

/// What the one who dials is.
enum class PeerRole : std::uint8_t {
  member = 0,
  fetcher = 1,  ///< a joiner or a read-only observer, which wants state and need not be a member of any view
};

/// First frame on a bulk connection, and the first that comes back: each end shows that it belongs to this
/// run, and that it is the replica meant. A lane is up once both have. No view is named: connections outlive
/// views.
///
/// Either end may dial, and both may at once. `lost` tells a connection that is to take the place of one that
/// its dialler has seen end from one that has only crossed another.
struct PeerHello {
  Digest token;
  protocol::ReplicaId from = 0, to = 0;
  std::uint16_t lane = 0;
  PeerRole role = PeerRole::member;
  std::uint64_t number = 0;  ///< of this connection, by who dials it: from 1; 0 in the answer
  std::uint64_t lost = 0;  ///< the newest connection of this lane, dialled by the other end, that was up here
  template <class Archive>
  void serialize(Archive& ar) {
    ar(token, from, to, lane, role, number, lost);
  }
};

struct Frame {
  FrameType type = FrameType::control;
  Bytes head;                  ///< owned: a chunk's header and what follows it; all of other frames
  protocol::SharedBytes body;  ///< codec bytes, packed or not, shared with others; may be null
};

/// Of the header, whatever its `check` is: a length that has been damaged must not be waited for. Never 0.
[[nodiscard]] std::uint16_t check_of(FrameHeader header);

/// What comes before a frame's body. Of a frame that is not `checked` the header alone is sent.
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

/// Bytes that it is on the wire, but for a checksum.
[[nodiscard]] inline std::size_t size_of(const Frame& frame) {
  return sizeof(FrameHeader) + frame.head.size() + (frame.body ? frame.body->size() : 0);
}

/// The largest frame that a peer can legally send, where no chunk has more codec bytes than that.
[[nodiscard]] inline constexpr std::size_t largest_chunk_frame(std::size_t codec_bytes) {
  return sizeof(ChunkHeader) +
         protocol::max_members * (sizeof(protocol::ReplicaId) + sizeof(protocol::SquaredNorm) +
                                  protocol::max_trained_on * sizeof(protocol::TrainedOn)) +
         codec_bytes;
}

/// A header as it stands in memory, which is as it is on the wire.
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
[[nodiscard]] Frame control_frame(const protocol::ControlMessage& message);
/// With `packed`, these bytes go in place of the message's.
[[nodiscard]] Frame chunk_frame(const protocol::ChunkMessage& message,
                                const protocol::SharedBytes& packed = nullptr);
[[nodiscard]] Frame ack_frame(protocol::ViewNumber view, const protocol::ChunkKey& key);
/// Puts the header in front.
[[nodiscard]] Frame relayed_frame(protocol::ReplicaId from, protocol::ReplicaId to, Frame frame,
                                  std::uint32_t session = 0);
[[nodiscard]] Frame begun_frame(protocol::ViewNumber view);
[[nodiscard]] Frame begun_heard_frame(protocol::ViewNumber view);

/// Nobody who has not said a proper hello may make us hold more than this.
inline constexpr std::size_t unauthenticated_limit = 64 * 1024;
/// Control messages of members: a layout of 400,000 fragments, a summary.
inline constexpr std::size_t control_limit = 32 * 1024 * 1024;

}  // namespace isthmus::outer_sync::transport
