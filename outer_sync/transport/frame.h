#pragma once
// Frames: a fixed header, then a body whose length is checked against what this connection may carry before a
// byte of it is allocated. Little-endian.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "isthmus/base/archive.h"
#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "isthmus/quant/lossless.h"

namespace isthmus::outer_sync::transport {

enum class FrameType : std::uint16_t { control = 1, peer_hello = 2, chunk = 3, ack = 4 };

struct FrameHeader {
  static constexpr std::uint32_t expected_magic = 0x48545349;  // "ISTH"
  std::uint32_t magic = expected_magic;
  FrameType type = FrameType::control;
  std::uint16_t zero = 0;
  std::uint32_t length = 0;  ///< bytes that follow
};
static_assert(sizeof(FrameHeader) == 12);

/// In front of a chunk's bytes; an acknowledgement is this header alone.
struct ChunkHeader {
  std::uint64_t view;
  std::uint64_t round;
  std::uint32_t chunk;
  std::uint16_t sender;  ///< who made the chunk, also in its acknowledgement
  std::uint8_t kind;     ///< protocol::ChunkKind
  std::uint8_t packing;  ///< quant::Lossless: how what follows is packed; 0 in acknowledgements
};
static_assert(sizeof(ChunkHeader) == 24);

[[nodiscard]] inline ChunkHeader header_of(protocol::ViewNumber view, const protocol::ChunkKey& key,
                                           quant::Lossless packing = quant::Lossless::none) {
  return {view,
          key.round,
          key.chunk,
          key.sender,
          static_cast<std::uint8_t>(key.kind),
          static_cast<std::uint8_t>(packing)};
}
[[nodiscard]] inline protocol::ChunkKey key_of(const ChunkHeader& header) {
  return {header.round, header.chunk, header.sender, static_cast<protocol::ChunkKind>(header.kind)};
}

/// First frame on a bulk connection, and the first that comes back: each end shows that it belongs to this
/// run, and that it is the replica meant. A lane is up once both have. No view is named: connections outlive
/// views.
struct PeerHello {
  Digest token;
  protocol::ReplicaId from = 0, to = 0;
  std::uint16_t lane = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(token, from, to, lane);
  }
};

struct Frame {
  FrameType type = FrameType::control;
  Bytes head;                  ///< small, owned
  protocol::SharedBytes body;  ///< codec bytes, packed or not, shared with others; may be null
};

/// Nobody who has not said a proper hello may make us hold more than this.
inline constexpr std::size_t unauthenticated_limit = 64 * 1024;
/// Control messages of members: a layout of 400,000 fragments, a summary.
inline constexpr std::size_t control_limit = 32 * 1024 * 1024;

}  // namespace isthmus::outer_sync::transport
