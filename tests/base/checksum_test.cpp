#include "isthmus/base/checksum.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace isthmus {
namespace {

std::vector<std::byte> bytes_from(int first, int step) {
  std::vector<std::byte> bytes(32);
  for (int i = 0; i < 32; ++i) bytes[static_cast<std::size_t>(i)] = static_cast<std::byte>(first + i * step);
  return bytes;
}

TEST(Crc32c, IsThatOfTheExamplesInRfc3720) {  // appendix B.4
  EXPECT_EQ(crc32c(bytes_from(0, 0)), 0x8a9136aaU);
  EXPECT_EQ(crc32c(bytes_from(0xff, 0)), 0x62a8ab43U);
  EXPECT_EQ(crc32c(bytes_from(0, 1)), 0x46dd794eU);
  EXPECT_EQ(crc32c(bytes_from(31, -1)), 0x113fdb5cU);
  EXPECT_EQ(crc32c(std::as_bytes(std::span(std::string_view("123456789")))), 0xe3069283U);
  EXPECT_EQ(crc32c({}), 0U);
}

TEST(Crc32c, OfPiecesIsThatOfAllInARow) {
  std::vector<std::byte> bytes(5000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + i / 256);
  const auto whole = crc32c(bytes);
  for (const std::size_t cut : {0, 1, 7, 8, 63, 1024, 4999, 5000}) {
    const auto all = std::span(bytes);
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), whole) << "cut after " << cut;
  }
}

}  // namespace
}  // namespace isthmus
