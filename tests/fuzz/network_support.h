#pragma once
// Helpers shared by the network's fuzzers: the run of the messages, and feeding bytes to a frame reader.

#include <optional>
#include <utility>

#include "fuzz_support.h"
#include "isthmus/base/checksum.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "net/state_transfer/state_frames.h"
#include "net/wire/frame_reader.h"

namespace isthmus::outer_sync {

using quant::require;

inline const FragmentLayout& fuzz_layout() {
  static const FragmentLayout layout({{0, 20}, {24, 9}}, 16);
  return layout;
}
inline protocol::CodecPlan fuzz_codecs() {
  return {.codec = {.kind = quant::CodecKind::int8, .block = 16}, .warmup_codec = {}};
}

/// Calls `read`. It may throw Error(network), which returns nothing; other errors fail.
template <class Read>
auto unless_refused(Read read) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::network, "an error of another kind");
    return std::nullopt;
  }
}

namespace transport {

/// The bytes of a received frame on the wire.
inline Bytes wire_of(const ReceivedFrame& received, bool checked) {
  auto frame = frame_of(received);
  if (const auto& relay = received.relay)
    frame = relayed_frame(relay->from, relay->to, std::move(frame), relay->session);
  const auto front = front_of(frame, checked);
  Bytes bytes(front.bytes().begin(), front.bytes().end());
  bytes.insert(bytes.end(), frame.head.begin(), frame.head.end());
  if (frame.body) bytes.insert(bytes.end(), frame.body->begin(), frame.body->end());
  return bytes;
}

/// Repairs the checksums of damaged frames: otherwise no input would pass them.
inline void make_good(std::span<std::byte> bytes) {
  FrameFront front;
  while (bytes.size() >= sizeof front) {
    std::memcpy(&front, bytes.data(), sizeof front);
    const auto before = front.bytes().size();
    const auto body =
        bytes.subspan(before, std::min<std::size_t>(front.header.length, bytes.size() - before));
    if (front.header.check != 0) {
      front.header.check = check_of(front.header);
      front.checksum = crc32c(body, crc32c(std::as_bytes(std::span(&front.header, 1))));
      std::memcpy(bytes.data(), &front, sizeof front);
    }
    bytes = bytes.subspan(before + body.size());
  }
}

/// Takes the next frame from the front of `bytes` as a connection does; nothing if they are too short. The
/// frame must equal the bytes on the wire and keep to the limit.
inline std::optional<ReceivedFrame> next_frame(std::span<const std::byte>& bytes, std::size_t limit,
                                               bool& checked) {
  const auto all = bytes;
  FrameReader reader(limit, checked);
  while (!reader.complete()) {
    for (const auto part : reader.wants()) {
      require(part.size() <= limit + sizeof(FrameHeader), "a read beyond the frame limit");
      if (part.size() > bytes.size()) return std::nullopt;
      std::ranges::copy(bytes.first(part.size()), part.begin());
      bytes = bytes.subspan(part.size());
    }
    reader.filled();
  }
  checked = reader.checked();
  auto frame = reader.take();
  const auto wire = wire_of(frame, checked);
  require(std::ranges::equal(wire, all.first(all.size() - bytes.size())),
          "a frame differs from the bytes on the wire");
  return frame;
}

}  // namespace transport
}  // namespace isthmus::outer_sync
