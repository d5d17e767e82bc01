// Frames as they are received: damage is noticed before a frame is used, and before the reader waits for
// more.

#include "net/wire/frame_reader.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>

#include "net/link/connection.h"

namespace isthmus::outer_sync::transport {
namespace {

using testing::HasSubstr;

constexpr std::size_t limit = 4096;

Bytes wire(const Frame& frame, bool checked = true) {
  const auto front = front_of(frame, checked);
  Bytes bytes(front.bytes().begin(), front.bytes().end());
  bytes.insert(bytes.end(), frame.head.begin(), frame.head.end());
  if (frame.body) bytes.insert(bytes.end(), frame.body->begin(), frame.body->end());
  return bytes;
}

/// A result frame with every optional field.
Frame result() {
  Bytes body(70);
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<std::byte>(3 * i);
  return chunk_frame({.view = 3,
                      .key = {7, 1, 2, protocol::ChunkKind::result},
                      .bytes = std::make_shared<const Bytes>(body),
                      .contributors = {11, 12},
                      .norms = {{11, 1.5}, {12, 2.5}, {13, 9.0}}});
}

/// Reads one frame from the bytes; nullopt if the reader would wait for more.
std::optional<ReceivedFrame> read_frame(std::span<const std::byte> bytes, bool checked) {
  FrameReader reader(limit, checked);
  while (!reader.complete()) {
    for (const auto part : reader.wants()) {
      if (part.size() > bytes.size()) return std::nullopt;
      std::ranges::copy(bytes.first(part.size()), part.begin());
      bytes = bytes.subspan(part.size());
    }
    reader.filled();
  }
  EXPECT_TRUE(bytes.empty()) << bytes.size() << " bytes were left over";
  return reader.take();
}

TEST(FrameReader, TakesWhatWasSentWithAChecksumAndWithout) {
  for (const bool checked : {true, false}) {
    const auto frame = read_frame(wire(result(), checked), checked);
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->type, FrameType::chunk);
    EXPECT_EQ(*frame->body, *result().body);
    EXPECT_EQ(frame->contributors, (std::vector<protocol::ReplicaId>{11, 12}));
    EXPECT_EQ(frame->norms.size(), 3U);
    EXPECT_EQ(frame->head.round, 7U);
    const auto ack = read_frame(wire(ack_frame(3, {7, 1, 2}), checked), checked);
    ASSERT_TRUE(ack);
    EXPECT_EQ(key_of(ack->head), (protocol::ChunkKey{7, 1, 2}));
    EXPECT_TRUE(ack->body->empty());
    const auto begun = read_frame(wire(begun_frame(9), checked), checked);
    ASSERT_TRUE(begun);
    EXPECT_EQ(from_bytes<protocol::ViewNumber>(*begun->body), 9U);
  }
}

TEST(FrameReader, ChecksumsHaveTheirPlacesOnTheWire) {
  const auto bytes = wire(begun_frame(9));
  const unsigned char expected[] = {'I',  'S',  'T',  'H',  11, 0, 0x99, 0xbb,  // magic, type, check
                                    8,    0,    0,    0,                        // length
                                    0xb0, 0xa9, 0xc8, 0xd7,                     // checksum
                                    9,    0,    0,    0,    0,  0, 0,    0};
  ASSERT_EQ(bytes.size(), sizeof expected);
  for (std::size_t i = 0; i < sizeof expected; ++i)
    EXPECT_EQ(std::to_integer<int>(bytes[i]), int{expected[i]})
        << "byte " << i << "; docs/protocol.md has them";
}

/// Flips each bit on a connection that has carried good frames so far. The reader must report damage, not
/// another frame, a breach of the protocol or an incomplete frame.
TEST(FrameReader, SeesEveryBitThatIsNotAsItWasSent) {
  for (const auto& frame : {result(), ack_frame(3, {7, 1, 2}), begun_frame(9)}) {
    const auto sound = wire(frame);
    for (std::size_t bit = 0; bit < 8 * sound.size(); ++bit) {
      auto bytes = sound;
      bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
      EXPECT_THROW((void)read_frame(bytes, true), Damaged) << "bit " << bit;
    }
  }
}

TEST(FrameReader, TheFirstFrameMayBeOfAnotherProtocolAndThenIsCalledThat) {
  const auto why = [](std::span<const std::byte> bytes, bool checked) -> std::string {
    try {
      return read_frame(bytes, checked) ? "taken" : "waits for more";
    } catch (const Damaged& damage) {
      return "damaged: " + damage.how();
    } catch (const Error& error) {
      return error.what();
    }
  };
  const std::string_view words = "GET / HTTP/1.1\r\n\r\n";
  EXPECT_THAT(why(std::as_bytes(std::span(words)), false), HasSubstr("not a frame of this protocol"));
  EXPECT_THAT(why(std::as_bytes(std::span(words)), true), HasSubstr("damaged: arrived damaged (CRC32C "));
  EXPECT_THAT(why(wire(result(), false), true), HasSubstr("damaged: "))
      << "a frame without a checksum, received at once";
  EXPECT_EQ(why(wire(result(), true), false), "taken");
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
