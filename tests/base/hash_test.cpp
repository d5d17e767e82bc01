#include "isthmus/base/hash.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace isthmus {
namespace {

std::string hex_of(std::string_view text) {
  return hash_of(std::as_bytes(std::span(text.data(), text.size()))).hex();
}

TEST(Hash, MatchesTheFipsExamples) {
  EXPECT_EQ(hex_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex_of(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Hash, PiecesGiveTheHashOfTheWhole) {
  const std::string text(1000, 'x');
  for (std::size_t cut = 0; cut <= text.size(); cut += 37) {
    Hasher hasher;
    hasher.update(std::string_view(text).substr(0, cut)).update(std::string_view(text).substr(cut));
    EXPECT_EQ(hasher.finish().hex(), hex_of(text)) << "cut at " << cut;
  }
}

TEST(Hash, NumbersAreLittleEndianBytes) {
  Hasher hasher;
  hasher.update(std::uint64_t{0x0807060504030201});
  EXPECT_EQ(hasher.finish().hex(), hex_of("\x01\x02\x03\x04\x05\x06\x07\x08"));
}

TEST(Hash, AFinishedHasherStartsANewHash) {
  Hasher hasher;
  hasher.update("something else");
  (void)hasher.finish();
  EXPECT_EQ(hasher.update("abc").finish().hex(), hex_of("abc"));
}

}  // namespace
}  // namespace isthmus
