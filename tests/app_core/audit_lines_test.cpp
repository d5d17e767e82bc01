// The lines of audit.jsonl: what is written is read back, and anything else is no line.

#include "run/audit/audit_lines.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace isthmus::app {
namespace {

Digest digest_of_byte(std::uint8_t byte) {
  Digest digest;
  digest.bytes.fill(byte);
  return digest;
}

AuditReceipts receipts() {
  AuditReceived received{
      .member = "eu", .weight = 4096, .kept = false, .bytes = {0xabab000000000001, 0xcdef000000000000}};
  received.sketch[0] = 1.5F;
  received.sketch[31] = -1e-20F;
  auto other = received;
  other.member = "us";
  return {.fragment = 2,
          .round = 7,
          .chunks = {5, 9},
          .results = {1, ~ShortDigest{0}},
          .contributions = {received, other}};
}

std::vector<AuditLine> audit_lines() {
  return {AuditStart{.member = "eu",
                     .state = AuditStart::State::checkpoint,
                     .step = 20,
                     .time = 1700000000123,
                     .machine = {{"build", "x"}}},
          AuditTrained{.step = 20, .samples = {{0, 8, 16}, {3, 0, 4}}, .others = 23},
          AuditApplied{.fragment = 1,
                       .round = 9,
                       .between_steps = true,
                       .chain = 0xabcdef0000000001,
                       .samples = {{0, 8, 16}, {1, 8, 16}}},
          AuditSpeeds{.own = 0.1, .reference = 1.0 / 3},
          AuditSnapshot{40},
          AuditCheckpoint{40, {{"agreed", digest_of_byte(2)}, {"parameters", digest_of_byte(3)}}},
          receipts()};
}

TEST(AuditLines, AreReadBackExactly) {
  for (const auto& line : audit_lines()) {
    const auto text = audit_json(line).dump();
    EXPECT_EQ(text.find('\n'), std::string::npos);
    const auto back = audit_line(text);
    ASSERT_TRUE(back) << text;
    EXPECT_EQ(*back, line) << text;
  }
}

TEST(AuditLines, AShortDigestIsTheBeginningOfTheHexadecimalOne) {
  Digest digest;
  for (std::size_t i = 0; i < digest.bytes.size(); ++i) digest.bytes[i] = static_cast<std::uint8_t>(i + 1);
  EXPECT_EQ(short_digest(digest), 0x0102030405060708U);
  const auto text = audit_json(AuditReceipts{.chunks = {0}, .results = {short_digest(digest)}}).dump();
  EXPECT_NE(text.find("\"results\":\"" + digest.hex().substr(0, 16) + "\""), std::string::npos) << text;
}

TEST(AuditLines, AnythingElseIsNoLine) {
  const auto samples = audit_json(AuditTrained{.step = 1, .samples = {{0, 8, 16}}}).dump();
  const auto of_receipts = audit_json(receipts()).dump();
  const auto with = [](std::string text, const std::string& old, const std::string& now) {
    return text.replace(text.find(old), old.size(), now);
  };
  const std::vector<std::string> texts = {
      "",
      "{",
      "[]",
      "7",
      "null",
      "{}",
      R"({"trained":7,"step":1})",
      R"({"trained":[[0,8]],"step":1})",
      R"({"snapshot":"x"})",
      R"({"start":"initial","version":1,"member":"eu","step":0,"time":0,"machine":{}})",
      R"({"start":"borrowed","version":2,"member":"eu","step":0,"time":0,"machine":{}})",
      R"({"checkpoint":1,"sections":{"agreed":"short"}})",
      with(samples, "8,16", "16,8"),
      with(samples, "0,8", "99999,8"),
      with(of_receipts, "abab", "abag"),
      with(of_receipts, "0000c03f", "00"),
      with(of_receipts, "[5,9]", "[5]"),
      with(of_receipts, "[5,9]", "[5,9,10]"),
      with(of_receipts, "cdef", "")};
  for (const auto& text : texts) EXPECT_FALSE(audit_line(text)) << text;
}

}  // namespace
}  // namespace isthmus::app
