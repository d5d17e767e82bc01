#pragma once
// How frames come in: what the next bytes are, step by step, and what may be wrong with them. It has no
// sockets.

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

/// What arrived is not what was sent: the wire or a memory has changed it, not the one who sent it.
class Damaged : public Error {
 public:
  Damaged(FrameType type, std::uint32_t arrived, std::uint32_t sent);
  [[nodiscard]] const std::string& thing() const { return thing_; }  ///< "chunk", or "frame"
  [[nodiscard]] const std::string& how() const { return how_; }      ///< "arrived damaged (CRC32C ...)"

 private:
  Damaged(std::string thing, std::string how);
  std::string thing_, how_;
};

/// A chunk's header, contributors, norms and samples are taken apart, so that `body` is its codec bytes,
/// packed or not, and nothing else.
struct ReceivedFrame {
  FrameType type{};
  ChunkHeader head{};                             ///< of chunks and acknowledgements
  std::vector<protocol::ReplicaId> contributors;  ///< of results; empty: all members of the view
  protocol::SharedBytes body;
  std::vector<protocol::SquaredNorm> norms{};     ///< of results where outer.reject is on
  std::vector<protocol::TrainedOn> trained_on{};  ///< of a fragment's first chunk
  std::optional<RelayHeader> relay{};  ///< of one that goes by a third member; `type` is the inner one
};

/// The first frame on a bulk connection. Throws Error(network) for anything else.
[[nodiscard]] PeerHello hello_of(const ReceivedFrame& frame);

/// What the frame says, once its body is unpacked.
[[nodiscard]] protocol::ChunkMessage message_of(ReceivedFrame chunk);

/// As it came, without the relay's header, for who sends it on.
[[nodiscard]] Frame frame_of(const ReceivedFrame& received);

/// Of one frame. `while (!complete()) { fill all of wants(); filled(); }`, then `take()`.
class FrameReader {
 public:
  using Wanted = std::array<std::span<std::byte>, 4>;

  /// No body is longer than `limit`. `checked`: the frame before it, from the same end, had a checksum, so
  /// this one has. Chunks are put into memory of `chunks` unless it is null, which must outlive this.
  FrameReader(std::size_t limit, bool checked, const BufferPool* chunks = nullptr);
  FrameReader(const FrameReader&) = delete;
  FrameReader& operator=(const FrameReader&) = delete;

  /// Where the next bytes go. Some or all may be empty.
  [[nodiscard]] Wanted wants();
  /// They are there. Throws Damaged, and Error(network) where they are no frame or what follows is longer
  /// than it may be; nothing is allocated for that.
  void filled();
  [[nodiscard]] bool complete() const { return next_ == Next::nothing; }
  /// Whether it has a checksum. Requires `complete()`, like `take`.
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
  bool has_head_ = false;               ///< a chunk's
  std::size_t left_ = 0;                ///< bytes of the frame that come after what is wanted now
  std::optional<std::string> problem_;  ///< with the other headers, unless they are damaged
  std::shared_ptr<Bytes> body_;
  ReceivedFrame frame_;
};

}  // namespace isthmus::outer_sync::transport
