#include "net/wire/frame_reader.h"

#include <fmt/format.h>

#include <utility>

#include "isthmus/base/checksum.h"

namespace isthmus::outer_sync::transport {

namespace {

/// Returns what is wrong with the header of a chunk or an acknowledgement that is followed by `length` bytes.
std::optional<std::string> problem_of(FrameType type, const ChunkHeader& header, std::size_t length) {
  const bool ack = type != FrameType::chunk;
  const bool is_contribution = header.kind == static_cast<std::uint8_t>(protocol::ChunkKind::contribution);
  const std::size_t ids = header.contributors;
  if (ack && length > 0) return "an acknowledgement followed by " + std::to_string(length) + " bytes";
  const std::size_t norms = header.norms;
  const bool is_result = header.kind == static_cast<std::uint8_t>(protocol::ChunkKind::result);
  if (header.weight != 0 && (ack || is_result)) return "a weight in an acknowledgement or a result";
  if (ids > 0 && (ack || is_contribution)) return "contributors in a frame that is not a result";
  if (norms > 0 && (ack || is_contribution)) return "norms in a frame that is not a result";
  if (norms > protocol::max_members || norms * sizeof(protocol::SquaredNorm) > length) {
    return std::to_string(norms) + " norms in a chunk frame; expected at most " +
           std::to_string(protocol::max_members) + ", and no more than fit into the frame";
  }
  length -= norms * sizeof(protocol::SquaredNorm);
  const std::size_t ranges = header.trained_on;
  const auto max_ranges = protocol::max_trained_on * (is_contribution ? 1 : protocol::max_members);
  if (ranges > (ack ? 0 : max_ranges) || ranges * sizeof(protocol::TrainedOn) > length) {
    return std::to_string(ranges) + " ranges of samples in a chunk frame; expected at most " +
           std::to_string(ack ? 0 : max_ranges) + ", and no more than fit into the frame";
  }
  length -= ranges * sizeof(protocol::TrainedOn);
  if (ids > protocol::max_members || ids * sizeof(protocol::ReplicaId) > length) {
    return std::to_string(ids) + " contributors in a chunk frame; expected at most " +
           std::to_string(protocol::max_members) + ", and no more than fit into the frame";
  }
  return std::nullopt;
}

/// Frames that a relay forwards or sends itself.
bool may_be_relayed(FrameType type) {
  return type == FrameType::begun || type == FrameType::begun_heard || type == FrameType::hail ||
         type == FrameType::relay_lost || type == FrameType::relay_taken || type == FrameType::chunk ||
         type == FrameType::ack;
}

}  // namespace

Damaged::Damaged(FrameType type, std::uint32_t arrived, std::uint32_t sent)
    : Damaged(type == FrameType::chunk ? "chunk" : "frame",
              fmt::format("arrived damaged (CRC32C {:08x}, sent with {:08x})", arrived, sent)) {}

Damaged::Damaged(std::string thing, std::string how)
    : Error(ErrorKind::network, "a " + thing + " " + how), thing_(std::move(thing)), how_(std::move(how)) {}

PeerHello hello_of(const ReceivedFrame& frame) {
  if (frame.type != FrameType::peer_hello) throw Error(ErrorKind::network, "its first frame is not a hello");
  return from_bytes<PeerHello>(*frame.body);
}

protocol::ChunkMessage message_of(ReceivedFrame chunk) {
  return {.view = chunk.head.view,
          .key = key_of(chunk.head),
          .bytes = std::move(chunk.body),
          .weight = chunk.head.weight,
          .contributors = std::move(chunk.contributors),
          .norms = std::move(chunk.norms),
          .trained_on = std::move(chunk.trained_on)};
}

Frame frame_of(const ReceivedFrame& received) {
  Frame frame{received.type, {}, received.body};
  const bool has_head = received.type == FrameType::chunk || received.type == FrameType::ack ||
                        (received.relay && received.type == FrameType::relay_taken);
  if (!has_head) return frame;
  frame.head = chunk_head(received.head, received.contributors, received.norms, received.trained_on);
  return frame;
}

FrameReader::FrameReader(std::size_t limit, bool checked, const BufferPool* chunks)
    : limit_(limit), must_be_checked_(checked), chunks_(chunks) {}

bool FrameReader::has_chunk_header() const {
  return frame_.type == FrameType::chunk || frame_.type == FrameType::ack ||
         (frame_.relay && frame_.type == FrameType::relay_taken);
}

FrameReader::Wanted FrameReader::wants() {
  const auto relayed = header_.type == FrameType::relayed;
  const auto checksum = [this](bool comes) {
    return std::as_writable_bytes(std::span(&checksum_, checked() && comes ? 1 : 0));
  };
  const auto body = [this] { return body_ ? std::span<std::byte>(*body_) : std::span<std::byte>(); };
  switch (next_) {
    case Next::header:
      return {std::as_writable_bytes(std::span(&header_, 1))};
    case Next::relay_header:
      return {checksum(true), std::as_writable_bytes(std::span(&relay_, 1))};
    case Next::chunk_header:
      return {checksum(!relayed), std::as_writable_bytes(std::span(&frame_.head, 1))};
    case Next::body:
      if (!has_chunk_header()) return {checksum(!relayed), body()};
      return {std::as_writable_bytes(std::span(frame_.contributors)),
              std::as_writable_bytes(std::span(frame_.norms)),
              std::as_writable_bytes(std::span(frame_.trained_on)), body()};
    case Next::nothing:
      break;
  }
  return {};
}

void FrameReader::filled() {
  switch (next_) {
    case Next::header:
      return take_header();
    case Next::relay_header:
      return take_relay_header();
    case Next::chunk_header:
      take_chunk_header_apart();
      return make_room();
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
  // An end that has never sent a valid frame does not speak this protocol.
  if (!magic && !must_be_checked_)
    throw Error(ErrorKind::network, "it sent bytes that are not a frame of this protocol");
  if (must_be_checked_ || checked()) {
    const auto check = check_of(header_);
    if (!magic || header_.check != check) throw Damaged(FrameType{}, check, header_.check);
  }
  const auto limit = limit_ + (header_.type == FrameType::relayed ? sizeof(RelayHeader) : 0);
  if (header_.length > limit) {
    throw Error(ErrorKind::network, "a frame of " + std::to_string(header_.length) +
                                        " bytes; expected at most " + std::to_string(limit) + " here");
  }
}

void FrameReader::take_header() {
  check_header();
  frame_.type = header_.type;
  left_ = header_.length;
  if (header_.type != FrameType::relayed) return want_chunk_header();
  if (left_ < sizeof(RelayHeader)) throw Error(ErrorKind::network, "a relayed frame without its header");
  left_ -= sizeof(RelayHeader);
  next_ = Next::relay_header;
}

void FrameReader::take_relay_header() {
  frame_.relay = relay_;
  frame_.type = relay_.inner;
  if (relay_.zero == 0 && may_be_relayed(relay_.inner)) return want_chunk_header();
  wrong("a frame of a type that is never relayed");
  make_room();
}

void FrameReader::want_chunk_header() {
  if (!has_chunk_header()) return make_room();
  if (left_ < sizeof(ChunkHeader)) {
    if (!frame_.relay) throw Error(ErrorKind::network, "a chunk frame without its header");
    wrong("a relayed chunk without its header");
    return make_room();
  }
  left_ -= sizeof(ChunkHeader);
  has_head_ = true;
  next_ = Next::chunk_header;
}

/// With a checksum, a problem may come from damage; that is known once the whole frame has arrived.
void FrameReader::wrong(std::string problem) {
  if (!checked()) throw Error(ErrorKind::network, problem);
  problem_ = std::move(problem);
}

void FrameReader::take_chunk_header_apart() {
  if (auto problem = problem_of(frame_.type, frame_.head, left_)) return wrong(std::move(*problem));
  frame_.contributors.resize(frame_.head.contributors);
  frame_.norms.resize(frame_.head.norms);
  frame_.trained_on.resize(frame_.head.trained_on);
  left_ -= frame_.contributors.size() * sizeof(protocol::ReplicaId) +
           frame_.norms.size() * sizeof(protocol::SquaredNorm) +
           frame_.trained_on.size() * sizeof(protocol::TrainedOn);
}

/// Allocates memory for the bytes after the headers.
void FrameReader::make_room() {
  const bool pooled = chunks_ != nullptr && frame_.type == FrameType::chunk && !problem_;
  body_ = pooled ? chunks_->take(left_) : std::make_shared<Bytes>(left_);
  next_ = Next::body;
}

void FrameReader::check_sum() const {
  auto sum = crc32c(std::as_bytes(std::span(&header_, 1)));
  if (frame_.relay) sum = crc32c(std::as_bytes(std::span(&relay_, 1)), sum);
  if (has_head_) {
    sum = crc32c(std::as_bytes(std::span(&frame_.head, 1)), sum);
    sum = crc32c(std::as_bytes(std::span(frame_.contributors)), sum);
    sum = crc32c(std::as_bytes(std::span(frame_.norms)), sum);
    sum = crc32c(std::as_bytes(std::span(frame_.trained_on)), sum);
  }
  sum = crc32c(*body_, sum);
  if (sum != checksum_) throw Damaged(frame_.type, sum, checksum_);
}

}  // namespace isthmus::outer_sync::transport
