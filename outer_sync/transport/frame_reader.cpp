#include "transport/frame_reader.h"

#include <fmt/format.h>

#include <utility>

#include "isthmus/base/checksum.h"

namespace isthmus::outer_sync::transport {

namespace {

/// What is wrong with the header of a chunk or an acknowledgement that `length` bytes follow.
std::optional<std::string> problem_of(FrameType type, const ChunkHeader& header, std::size_t length) {
  const bool ack = type == FrameType::ack;
  const bool is_contribution = header.kind == static_cast<std::uint8_t>(protocol::ChunkKind::contribution);
  const std::size_t ids = header.contributors;
  if (ack && length > 0) return "an acknowledgement with " + std::to_string(length) + " bytes behind it";
  const std::size_t norms = header.norms;
  if (header.zero != 0) return "a chunk header with bits that mean nothing yet";
  if (header.weight != 0 && (ack || !is_contribution)) return "a weight of what is no contribution";
  if (ids > 0 && (ack || is_contribution)) return "contributors of what is no result";
  if (norms > 0 && (ack || is_contribution)) return "norms of what is no result";
  if (norms > protocol::most_members || norms * sizeof(protocol::SquaredNorm) > length) {
    return std::to_string(norms) + " norms in a chunk frame; at most " +
           std::to_string(protocol::most_members) + ", and no more than fit, can be legal";
  }
  length -= norms * sizeof(protocol::SquaredNorm);
  if (ids > protocol::most_members || ids * sizeof(protocol::ReplicaId) > length) {
    return std::to_string(ids) + " contributors in a chunk frame; at most " +
           std::to_string(protocol::most_members) + ", and no more than fit, can be legal";
  }
  return std::nullopt;
}

}  // namespace

Damaged::Damaged(FrameType type, std::uint32_t arrived, std::uint32_t sent)
    : Damaged(type == FrameType::chunk ? "chunk" : "frame",
              fmt::format("arrived damaged (CRC32C {:08x}, sent with {:08x})", arrived, sent)) {}

Damaged::Damaged(std::string thing, std::string how)
    : Error(ErrorKind::network, "a " + thing + " " + how), thing_(std::move(thing)), how_(std::move(how)) {}

PeerHello hello_of(const ReceivedFrame& frame) {
  if (frame.type != FrameType::peer_hello) throw Error(ErrorKind::network, "its first frame is no hello");
  return from_bytes<PeerHello>(*frame.body);
}

protocol::ChunkMessage message_of(ReceivedFrame chunk) {
  return {.view = chunk.head.view,
          .key = key_of(chunk.head),
          .bytes = std::move(chunk.body),
          .weight = chunk.head.weight,
          .contributors = std::move(chunk.contributors),
          .norms = std::move(chunk.norms)};
}

FrameReader::FrameReader(std::size_t limit, bool checked, const BufferPool* chunks)
    : limit_(limit), must_be_checked_(checked), chunks_(chunks) {}

bool FrameReader::has_chunk_header() const {
  return header_.type == FrameType::chunk || header_.type == FrameType::ack;
}

FrameReader::Wanted FrameReader::wants() {
  const auto checksum = std::as_writable_bytes(std::span(&checksum_, checked() ? 1 : 0));
  const auto body = [this] { return body_ ? std::span<std::byte>(*body_) : std::span<std::byte>(); };
  switch (next_) {
    case Next::header:
      return {std::as_writable_bytes(std::span(&header_, 1))};
    case Next::chunk_header:
      return {checksum, std::as_writable_bytes(std::span(&frame_.head, 1))};
    case Next::body:
      if (!has_chunk_header()) return {checksum, body()};
      return {std::as_writable_bytes(std::span(frame_.contributors)),
              std::as_writable_bytes(std::span(frame_.norms)), body()};
    case Next::nothing:
      break;
  }
  return {};
}

void FrameReader::filled() {
  switch (next_) {
    case Next::header:
      check_header();
      frame_.type = header_.type;
      if (has_chunk_header()) {
        next_ = Next::chunk_header;
        return;
      }
      make_room();
      next_ = Next::body;
      return;
    case Next::chunk_header:
      take_chunk_header_apart();
      make_room();
      next_ = Next::body;
      return;
    case Next::body:
      if (checked()) check_sum();
      if (problem_) throw Error(ErrorKind::network, *problem_);
      frame_.body = std::move(body_);
      next_ = Next::nothing;
      return;
    case Next::nothing:
      return;
  }
}

void FrameReader::check_header() const {
  const bool magic = header_.magic == FrameHeader::expected_magic;
  // What begins like that, and has never sent a frame, speaks another language.
  if (!magic && !must_be_checked_)
    throw Error(ErrorKind::network, "what it sent is no frame of this protocol");
  if (must_be_checked_ || checked()) {
    const auto check = check_of(header_);
    if (!magic || header_.check != check) throw Damaged(FrameType{}, check, header_.check);
  }
  if (header_.length > limit_) {
    throw Error(ErrorKind::network, "a frame of " + std::to_string(header_.length) + " bytes; at most " +
                                        std::to_string(limit_) + " can be legal here");
  }
  if (has_chunk_header() && header_.length < sizeof(ChunkHeader))
    throw Error(ErrorKind::network, "a chunk frame without its header");
}

/// What does not fit may have been damaged; that is known when all is there.
void FrameReader::take_chunk_header_apart() {
  problem_ = problem_of(header_.type, frame_.head, header_.length - sizeof(ChunkHeader));
  if (problem_ && !checked()) throw Error(ErrorKind::network, *problem_);
  if (problem_) return;
  frame_.contributors.resize(frame_.head.contributors);
  frame_.norms.resize(frame_.head.norms);
}

/// For what follows the headers.
void FrameReader::make_room() {
  std::size_t size = header_.length;
  if (has_chunk_header()) {
    size -= sizeof(ChunkHeader) + frame_.contributors.size() * sizeof(protocol::ReplicaId) +
            frame_.norms.size() * sizeof(protocol::SquaredNorm);
  }
  const bool pooled = chunks_ != nullptr && header_.type == FrameType::chunk && !problem_;
  body_ = pooled ? chunks_->take(size) : std::make_shared<Bytes>(size);
}

void FrameReader::check_sum() const {
  auto sum = crc32c(std::as_bytes(std::span(&header_, 1)));
  if (has_chunk_header()) {
    sum = crc32c(std::as_bytes(std::span(&frame_.head, 1)), sum);
    sum = crc32c(std::as_bytes(std::span(frame_.contributors)), sum);
    sum = crc32c(std::as_bytes(std::span(frame_.norms)), sum);
  }
  sum = crc32c(*body_, sum);
  if (sum != checksum_) throw Damaged(header_.type, sum, checksum_);
}

}  // namespace isthmus::outer_sync::transport
