#include "net/wire/frame.h"

#include <cassert>
#include <utility>

#include "isthmus/base/checksum.h"

namespace isthmus::outer_sync::transport {

std::uint16_t check_of(FrameHeader header) {
  header.check = 0;
  return static_cast<std::uint16_t>(crc32c(std::as_bytes(std::span(&header, 1))) | 1U);
}

FrameFront front_of(const Frame& frame, bool checked) {
  FrameFront front{.header = {.type = frame.type,
                              .length = static_cast<std::uint32_t>(size_of(frame) - sizeof(FrameHeader))}};
  if (!checked) return front;
  front.header.check = check_of(front.header);
  front.checksum = crc32c(frame.head, crc32c(std::as_bytes(std::span(&front.header, 1))));
  if (frame.body) front.checksum = crc32c(*frame.body, front.checksum);
  return front;
}

Bytes chunk_head(const ChunkHeader& header, std::span<const protocol::ReplicaId> contributors,
                 std::span<const protocol::SquaredNorm> norms,
                 std::span<const protocol::TrainedOn> trained_on) {
  auto head = bytes_of(header);
  for (const auto list : {std::as_bytes(contributors), std::as_bytes(norms), std::as_bytes(trained_on)})
    head.insert(head.end(), list.begin(), list.end());
  return head;
}

Frame control_frame(const protocol::ControlMessage& message) {
  return {FrameType::control, encode(message), nullptr};
}

Frame chunk_frame(const protocol::ChunkMessage& message, const protocol::SharedBytes& packed) {
  assert(message.contributors.size() <= protocol::max_members);
  const auto header = header_of(message, packed ? quant::Lossless::zstd : quant::Lossless::none);
  auto head = chunk_head(header, message.contributors, message.norms, message.trained_on);
  return {FrameType::chunk, std::move(head), packed ? packed : message.bytes};
}

Frame ack_frame(protocol::ViewNumber view, const protocol::ChunkKey& key) {
  return {FrameType::ack, bytes_of(header_of(view, key)), nullptr};
}

Frame relayed_frame(protocol::ReplicaId from, protocol::ReplicaId to, Frame frame, std::uint32_t session) {
  auto head = bytes_of(RelayHeader{.from = from, .to = to, .inner = frame.type, .session = session});
  head.insert(head.end(), frame.head.begin(), frame.head.end());
  return {FrameType::relayed, std::move(head), std::move(frame.body)};
}

Frame hello_frame(const PeerHello& hello) { return {FrameType::peer_hello, to_bytes(hello), nullptr}; }

Frame begun_frame(protocol::ViewNumber view) { return {FrameType::begun, to_bytes(view), nullptr}; }
Frame begun_heard_frame(protocol::ViewNumber view) {
  return {FrameType::begun_heard, to_bytes(view), nullptr};
}

}  // namespace isthmus::outer_sync::transport
