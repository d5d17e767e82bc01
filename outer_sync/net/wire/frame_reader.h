#pragma once
// Parses incoming frames step by step, and validates them. No sockets.

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/buffer_pool.h"
#include "net/wire/frame.h"

namespace isthmus::outer_sync::transport {

/// The bytes that arrived differ from the bytes sent: the network or a memory changed them, not the sender.
class Damaged : public Error {
 public:
  Damaged(FrameType type, std::uint32_t arrived, std::uint32_t sent);
  [[nodiscard]] const std::string& thing() const { return thing_; }  ///< "chunk", or "frame"
  [[nodiscard]] const std::string& how() const { return how_; }      ///< "arrived damaged (CRC32C ...)"

 private:
  Damaged(std::string thing, std::string how);
  std::string thing_, how_;
};

/// A received frame. A chunk's header, contributors, norms and samples are separated, so that `body` holds
/// only its codec bytes, packed or not.
struct ReceivedFrame {
  FrameType type{};
  ChunkHeader head{};                             ///< of chunks and acknowledgements
  std::vector<protocol::ReplicaId> contributors;  ///< of results; empty: all members of the view
  protocol::SharedBytes body;
  std::vector<protocol::SquaredNorm> norms{};     ///< of results where outer.reject is on
  std::vector<protocol::TrainedOn> trained_on{};  ///< of a fragment's first chunk
  std::optional<RelayHeader> relay{};             ///< of a relayed frame; `type` is the inner type
};

/// Reads the first frame on a bulk connection. Throws Error(network) for any other frame.
[[nodiscard]] PeerHello hello_of(const ReceivedFrame& frame);

/// The chunk message in the frame; its body must be unpacked already.
[[nodiscard]] protocol::ChunkMessage message_of(ReceivedFrame chunk);

/// The frame as received, without the RelayHeader, to send it on.
[[nodiscard]] Frame frame_of(const ReceivedFrame& received);

/// Reads one frame: `while (!complete()) { fill all of wants(); filled(); }`, then `take()`.
class FrameReader {
 public:
  using Wanted = std::array<std::span<std::byte>, 4>;

  /// `limit`: maximum length of the body. `checked`: the previous frame from this end had a checksum, so this
  /// one must too. Chunks are read into memory of `chunks`, which must outlive this, unless it is null.
  FrameReader(std::size_t limit, bool checked, const BufferPool* chunks = nullptr);
  FrameReader(const FrameReader&) = delete;
  FrameReader& operator=(const FrameReader&) = delete;

  /// Buffers for the next bytes; some or all may be empty.
  [[nodiscard]] Wanted wants();
  /// The buffers have been filled. Throws Damaged, or Error(network) if the bytes are no valid frame or
  /// announce too much; nothing is allocated in that case.
  void filled();
  [[nodiscard]] bool complete() const { return next_ == Next::nothing; }
  /// Whether the frame has a checksum. Requires `complete()`, like `take`.
  [[nodiscard]] bool checked() const { return header_.check != 0; }
  [[nodiscard]] ReceivedFrame take() { return std::move(frame_); }

 private:
  enum class Next { header, relay_header, chunk_header, body, nothing };
  [[nodiscard]] bool has_chunk_header() const;
  void check_header() const;
  void take_header();
  void take_relay_header();
  void want_chunk_header();
  void take_chunk_header_apart();
  void wrong(std::string problem);
  void make_room();
  void check_sum() const;

  std::size_t limit_;
  bool must_be_checked_;
  const BufferPool* chunks_;
  Next next_ = Next::header;
  FrameHeader header_;
  Checksum checksum_ = 0;
  RelayHeader relay_{};
  bool has_head_ = false;               ///< a ChunkHeader has been read
  std::size_t left_ = 0;                ///< bytes of the frame after those in wants()
  std::optional<std::string> problem_;  ///< problem of the other headers, reported if the checksum is right
  std::shared_ptr<Bytes> body_;
  ReceivedFrame frame_;
};

}  // namespace isthmus::outer_sync::transport
