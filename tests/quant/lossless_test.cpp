// The lossless stage: packed bytes can be restored, and no frame unpacks to another size than the requested
// one.

#include "isthmus/quant/lossless.h"

#include <gmock/gmock.h>
#include <zstd.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "isthmus/quant/passes.h"

namespace isthmus::quant {
namespace {

Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(random_bits(3, seed, i));
  return bytes;
}

/// Bell-shaped values; like outer gradients, their magnitude changes slowly, from layer to layer.
std::vector<float> values(std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    float sum = -2;
    for (std::uint64_t k = 0; k < 4; ++k) sum += random_unit(1, k, i);
    x[i] = sum * 1e-3F * static_cast<float>(1 + i * 8 / n);
  }
  return x;
}

Bytes encoded(const CodecSpec& spec, std::span<const float> x) {
  Bytes bytes(encoded_size(spec, x.size()));
  EXPECT_FALSE(encode(spec, x, {}, {}, bytes));
  return bytes;
}

std::optional<Bytes> packed(const Bytes& bytes, std::size_t scales = 0) {
  Packer packer;
  Bytes out(bytes.size());
  const auto size = packer.pack(bytes, scales, out);
  if (!size) return std::nullopt;
  out.resize(*size);
  return out;
}

/// A frame made by zstd alone, which may be larger than its content.
Bytes frame_of(const Bytes& bytes, bool with_size = true) {
  auto* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, with_size ? 1 : 0);
  Bytes out(ZSTD_compressBound(bytes.size()));
  out.resize(ZSTD_compress2(context, out.data(), out.size(), bytes.data(), bytes.size()));
  ZSTD_freeCCtx(context);
  return out;
}

bool unpacks(const Bytes& frame, std::size_t size) {
  Unpacker unpacker;
  Bytes out(size);
  return unpacker.unpack(frame, out);
}

Bytes joined(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Bytes words(std::initializer_list<std::uint8_t> list) {
  Bytes bytes;
  for (const auto byte : list) bytes.push_back(static_cast<std::byte>(byte));
  return bytes;
}

TEST(Lossless, WhatIsPackedComesBackByteForByte) {
  Packer packer;  // one for all, as in a run
  Unpacker unpacker;
  for (const auto& [kind, name, stored, layout, bits, block] : codecs) {
    for (const std::size_t n : {std::size_t{1}, std::size_t{100}, std::size_t{4096}, std::size_t{65536}}) {
      SCOPED_TRACE(std::string(name) + ", elements: " + std::to_string(n));
      const auto spec = default_spec(kind);
      const auto bytes = encoded(spec, values(n));
      Bytes out(bytes.size());
      const auto size = packer.pack(bytes, scale_part(spec, n), out);
      if (!size) continue;
      EXPECT_LT(*size, bytes.size());
      Bytes back(bytes.size());
      EXPECT_TRUE(unpacker.unpack(std::span(out).first(*size), back));
      EXPECT_EQ(back, bytes);
    }
  }
}

TEST(Lossless, CodesOfBellShapedValuesShrink) {
  for (const auto kind : {CodecKind::int8, CodecKind::int4, CodecKind::e3m0, CodecKind::lloyd4}) {
    const auto spec = default_spec(kind);
    const auto bytes = encoded(spec, values(65536));
    const auto smaller = packed(bytes, scale_part(spec, 65536));
    ASSERT_TRUE(smaller) << to_string(kind);
    EXPECT_LT(static_cast<double>(smaller->size()), .97 * static_cast<double>(bytes.size()))
        << to_string(kind);
  }
}

TEST(Lossless, WhatDoesNotShrinkIsNotPacked) {
  EXPECT_FALSE(packed({}));
  EXPECT_FALSE(packed(Bytes(1)));
  EXPECT_FALSE(packed(random_bytes(20000, 1)));
  EXPECT_FALSE(packed(random_bytes(20000, 1), 1000));
}

TEST(Lossless, PackingGoesOnAfterARunThatDidNotShrink) {
  Packer packer;
  const auto noise = random_bytes(5000, 2);
  const Bytes zeros(5000, std::byte{0});
  Bytes out(5000);
  EXPECT_FALSE(packer.pack(noise, 700, out));
  const auto size = packer.pack(zeros, 0, out);
  ASSERT_TRUE(size);
  out.resize(*size);
  EXPECT_TRUE(unpacks(out, zeros.size()));
  EXPECT_EQ(out, packed(zeros).value()) << "packed bytes must not depend on earlier calls";
}

TEST(Lossless, ScalesComeFirst) {
  CodecSpec spec{.kind = CodecKind::int4, .block = 32};
  EXPECT_EQ(scale_part(spec, 100), 8U);  // four blocks, two bytes each
  spec.scale = ScaleFormat::e8m0;
  EXPECT_EQ(scale_part(spec, 100), 4U);
  for (const auto kind : {CodecKind::fp32, CodecKind::bf16, CodecKind::topk})
    EXPECT_EQ(scale_part(default_spec(kind), 4096), 0U) << to_string(kind);
}

TEST(Lossless, NamesAreKnown) {
  EXPECT_EQ(lossless("none"), Lossless::none);
  EXPECT_EQ(lossless("zstd"), Lossless::zstd);
  EXPECT_THROW(static_cast<void>(lossless("gzip")), Error);
}

// ---- hostile frames ----

TEST(LosslessHostile, AnyOtherSizeIsRefused) {
  const Bytes zeros(5000, std::byte{0});
  for (const auto& frame : {packed(zeros).value(), frame_of(zeros), frame_of(zeros, false)}) {
    EXPECT_TRUE(unpacks(frame, 5000));
    for (const std::size_t size : {0, 1, 4999, 5001, 100000}) EXPECT_FALSE(unpacks(frame, size)) << size;
  }
}

TEST(LosslessHostile, EveryTruncationIsRefused) {
  const auto spec = default_spec(CodecKind::int4);
  const auto bytes = encoded(spec, values(4096));
  const auto frame = packed(bytes, scale_part(spec, 4096)).value();
  ASSERT_TRUE(unpacks(frame, bytes.size()));
  for (std::size_t size = 0; size < frame.size(); ++size) {
    const Bytes cut(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(unpacks(cut, bytes.size())) << size;
  }
}

TEST(LosslessHostile, ASecondFrameOrAnythingElseBehindIsRefused) {
  const Bytes half(500, std::byte{7});
  const auto frame = frame_of(half);
  const auto skippable = words({0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 1, 2});
  const auto empty = frame_of({});
  EXPECT_TRUE(unpacks(frame, 500));
  EXPECT_FALSE(unpacks(joined(frame, Bytes(1, std::byte{0})), 500));
  EXPECT_FALSE(unpacks(joined(frame, frame), 1000)) << "two frames, each with half of the size";
  EXPECT_FALSE(unpacks(joined(frame, empty), 500));
  EXPECT_FALSE(unpacks(joined(empty, frame), 500));
  EXPECT_FALSE(unpacks(joined(frame, skippable), 500));
  EXPECT_FALSE(unpacks(joined(skippable, frame), 500));
  EXPECT_FALSE(unpacks(skippable, 0));
}

TEST(LosslessHostile, AFrameThatClaimsGigabytesCostsNothing) {
  // Magic, a descriptor that announces eight bytes of content size, and, if the descriptor has one, a window
  // of 2 GiB.
  for (const std::uint8_t descriptor : {0xe0, 0xc0}) {
    auto frame = words({0x28, 0xb5, 0x2f, 0xfd, descriptor});
    if (descriptor == 0xc0) frame.push_back(std::byte{0xa8});
    frame = joined(frame, words({0, 0, 0, 0, 8, 0, 0, 0}));  // content size 32 GiB
    frame = joined(frame, words({3, 0, 0xfe, 0x41}));        // one byte repeated 2 MiB times
    EXPECT_FALSE(unpacks(frame, 1000));
  }
  // A real bomb: a few dozen bytes with a megabyte of zeros, for an output of a thousand bytes.
  EXPECT_FALSE(unpacks(frame_of(Bytes(1 << 20, std::byte{0})), 1000));
  EXPECT_FALSE(unpacks(frame_of(Bytes(1 << 20, std::byte{0}), false), 1000));
}

TEST(LosslessHostile, ADictionaryNobodyHasIsRefused) {
  auto frame = frame_of(Bytes(500, std::byte{7}), false);
  ASSERT_EQ(static_cast<int>(frame[4]) & 3, 0);
  frame[4] |= std::byte{1};  // a dictionary id of one byte after the window
  frame.insert(frame.begin() + 6, std::byte{42});
  EXPECT_FALSE(unpacks(frame, 500));
}

TEST(LosslessHostile, FormatsOfBeforeTheStandardAreRefused) {
  auto frame = frame_of(Bytes(500, std::byte{7}));
  for (std::uint8_t first = 0x22; first < 0x28; ++first) {
    frame[0] = std::byte{first};
    EXPECT_FALSE(unpacks(frame, 500));
  }
}

TEST(LosslessHostile, RandomBytesAndFlippedBitsNeverHarm) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) EXPECT_FALSE(unpacks(random_bytes(seed, seed), 500));
  const auto spec = default_spec(CodecKind::int4);
  const auto bytes = encoded(spec, values(4096));
  const auto frame = packed(bytes, scale_part(spec, 4096)).value();
  Unpacker unpacker;
  Bytes out(bytes.size());
  for (std::size_t i = 0; i < 3000; ++i) {
    auto broken = frame;
    const auto at = random_bits(8, 0, i) % broken.size();
    broken[at] ^= static_cast<std::byte>(1U << (random_bits(8, 1, i) % 8));
    static_cast<void>(
        unpacker.unpack(broken, out));  // gives other bytes or refuses; sanitizers check memory accesses
  }
  EXPECT_TRUE(unpacker.unpack(frame, out)) << "a broken frame must not affect later frames";
  EXPECT_EQ(out, bytes);
}

}  // namespace
}  // namespace isthmus::quant
