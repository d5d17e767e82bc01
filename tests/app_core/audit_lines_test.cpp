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

outer_sync::protocol::Receipt receipt() {
  outer_sync::protocol::Received received{
      .member = "eu", .weight = 4096, .kept = false, .bytes = digest_of_byte(0xab)};
  received.sketch[0] = 1.5F;
  received.sketch[31] = -1e-20F;
  return {.fragment = 2,
          .round = 7,
          .chunk = 5,
          .result = digest_of_byte(1),
          .contributions = {received, received}};
}

std::vector<AuditLine> audit_lines() {
  return {AuditStart{.member = "eu",
                     .state = AuditStart::State::checkpoint,
                     .step = 20,
                     .time = 1700000000123,
                     .machine = {{"build", "x"}}},
          AuditTrained{.step = 20, .samples = {{0, 8, 16}, {3, 0, 4}}, .others = 23},
          AuditApplied{.fragment = 1, .round = 9, .between_steps = true},
          AuditSpeeds{.own = 0.1, .reference = 1.0 / 3},
          AuditSnapshot{40},
          AuditCheckpoint{40, {{"agreed", digest_of_byte(2)}, {"parameters", digest_of_byte(3)}}},
          receipt()};
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

TEST(AuditLines, AnythingElseIsNoLine) {
  const auto samples = audit_json(AuditTrained{.step = 1, .samples = {{0, 8, 16}}}).dump();
  const auto of_receipt = audit_json(receipt()).dump();
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
      R"({"start":"initial","version":99,"member":"eu","step":0,"time":0,"machine":{}})",
      R"({"start":"borrowed","version":1,"member":"eu","step":0,"time":0,"machine":{}})",
      R"({"checkpoint":1,"sections":{"agreed":"short"}})",
      with(samples, "8,16", "16,8"),
      with(samples, "0,8", "99999,8"),
      with(of_receipt, "abab", "abag"),
      with(of_receipt, "0000c03f", "00")};
  for (const auto& text : texts) EXPECT_FALSE(audit_line(text)) << text;
}

}  // namespace
}  // namespace isthmus::app
