#include "isthmus/base/archive.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/hash.h"

namespace isthmus {
namespace {

enum class Kind : std::uint8_t { small = 1, large = 200 };

struct Inner {
  std::int32_t number = 0;
  bool flag = false;
  friend bool operator==(const Inner&, const Inner&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(number, flag);
  }
};

struct Outer {
  std::uint64_t id = 0;
  double value = 0;
  Kind kind = Kind::small;
  std::string name;
  std::vector<float> numbers;
  std::vector<Kind> kinds;
  std::vector<Inner> inners;
  std::vector<std::string> names;
  std::vector<std::pair<std::string, std::uint32_t>> pairs;
  Bytes bytes;
  Digest digest;
  friend bool operator==(const Outer&, const Outer&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, value, kind, name, numbers, kinds, inners, names, pairs, bytes, digest);
  }
};

Outer sample() {
  Outer out;
  out.id = 0x0102030405060708;
  out.value = -0.1;
  out.kind = Kind::large;
  out.name = std::string("caf\xc3\xa9\0x", 7);
  out.numbers = {1.5F, -2.0F};
  out.kinds = {Kind::large, Kind::small};
  out.inners = {{-1, true}, {7, false}};
  out.names = {"", "b"};
  out.pairs = {{"k", 9}};
  out.bytes = {std::byte{0xff}, std::byte{0}};
  out.digest.bytes[31] = 5;
  return out;
}

std::string refusal(std::span<const std::byte> bytes) {
  try {
    (void)from_bytes<Outer>(bytes);
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::network);
    return e.what();
  }
}

Bytes count_then(std::uint32_t count, std::size_t zeros) {
  BinaryWriter writer;
  writer(count);
  auto bytes = writer.take();
  bytes.resize(bytes.size() + zeros, std::byte{0});
  return bytes;
}

TEST(Archive, EverythingComesBack) { EXPECT_EQ(from_bytes<Outer>(to_bytes(sample())), sample()); }

TEST(Archive, WhereAVectorBeginsDoesNotShow) {
  const std::vector<float> plain{1, -2, 0.5F};
  const AlignedVector<float> aligned(plain.begin(), plain.end());
  EXPECT_EQ(to_bytes(aligned), to_bytes(plain));
  EXPECT_EQ(from_bytes<AlignedVector<float>>(to_bytes(plain)), aligned);
}

TEST(Archive, NumbersAreLittleEndianWithoutPadding) {
  const auto bytes = to_bytes(Inner{0x01020304, true});
  EXPECT_EQ(bytes, (Bytes{std::byte{4}, std::byte{3}, std::byte{2}, std::byte{1}, std::byte{1}}));
}

RC_GTEST_PROP(Archive, ArbitraryValuesComeBack, ()) {
  Outer out;
  out.id = *rc::gen::arbitrary<std::uint64_t>();
  out.name = *rc::gen::arbitrary<std::string>();
  out.numbers = *rc::gen::arbitrary<std::vector<float>>();
  out.names = *rc::gen::arbitrary<std::vector<std::string>>();
  out.pairs = *rc::gen::arbitrary<std::vector<std::pair<std::string, std::uint32_t>>>();
  RC_ASSERT(from_bytes<Outer>(to_bytes(out)) == out);
}

TEST(Archive, AMessageCutAnywhereIsRefused) {
  const auto bytes = to_bytes(sample());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(refusal(std::span(bytes).first(size)), "") << "cut at " << size << " of " << bytes.size();
  }
}

TEST(Archive, BytesLeftOverAreRefused) {
  auto bytes = to_bytes(sample());
  bytes.push_back(std::byte{0});
  EXPECT_EQ(refusal(bytes), "message has bytes left over");
}

TEST(Archive, AHugeCountIsRefusedBeforeAnythingIsAllocated) {
  for (const std::uint32_t count : {9U, 1'000'000'000U, std::numeric_limits<std::uint32_t>::max()}) {
    const auto bytes = count_then(count, 8);
    EXPECT_THROW((void)from_bytes<std::string>(bytes), Error) << count;
    EXPECT_THROW((void)from_bytes<std::vector<double>>(bytes), Error) << count;
    EXPECT_THROW((void)from_bytes<std::vector<Kind>>(bytes), Error) << count;
    EXPECT_THROW((void)from_bytes<std::vector<Inner>>(bytes), Error) << count;
    EXPECT_THROW((void)from_bytes<std::vector<std::string>>(bytes), Error) << count;
    EXPECT_THROW((void)from_bytes<std::vector<std::vector<std::string>>>(bytes), Error) << count;
  }
}

// Two doubles need 16 bytes: a count must be checked against the size of its elements, not against their
// number.
TEST(Archive, ACountIsJudgedByTheSizeOfItsElements) {
  EXPECT_THROW((void)from_bytes<std::vector<double>>(count_then(2, 15)), Error);
  EXPECT_EQ(from_bytes<std::vector<double>>(count_then(2, 16)), (std::vector<double>{0, 0}));
}

RC_GTEST_PROP(Archive, ArbitraryBytesAreReadOrRefused, (const std::vector<std::uint8_t>& noise)) {
  const auto bytes = std::as_bytes(std::span(noise));
  try {
    (void)from_bytes<Outer>(bytes);
  } catch (const Error&) {
  }
}

RC_GTEST_PROP(Archive, AFlippedByteIsReadOrRefused, ()) {
  auto bytes = to_bytes(sample());
  bytes[*rc::gen::inRange<std::size_t>(0, bytes.size())] =
      static_cast<std::byte>(*rc::gen::arbitrary<std::uint8_t>());
  try {
    (void)from_bytes<Outer>(bytes);
  } catch (const Error&) {
  }
}

// A bool with any other bits is undefined behaviour, and a message must have a single form.
TEST(Archive, ABoolIsAByteThatIsZeroOrOne) {
  for (int byte = 0; byte < 256; ++byte) {
    const Bytes bytes{static_cast<std::byte>(byte)};
    if (byte <= 1) {
      EXPECT_EQ(from_bytes<bool>(bytes), byte == 1);
    } else {
      EXPECT_THROW((void)from_bytes<bool>(bytes), Error) << byte;
    }
  }
}

TEST(Archive, AVectorThatWasNotEmptyIsReplaced) {
  const auto bytes = to_bytes(std::vector<Inner>{{1, true}});
  std::vector<Inner> items(5);
  BoundedReader reader(bytes);
  reader(items);
  EXPECT_EQ(items, (std::vector<Inner>{{1, true}}));
  EXPECT_EQ(reader.left(), 0U);
}

}  // namespace
}  // namespace isthmus
