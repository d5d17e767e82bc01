#include "run/audit/audit_lines.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <stdexcept>

namespace isthmus::app {

namespace {

using Json = nlohmann::ordered_json;
using outer_sync::protocol::Sketch;

constexpr std::array states = {"initial", "checkpoint", "others"};

[[noreturn]] void refuse_line(const char* what) { throw std::invalid_argument(what); }

// Numbers are written in hexadecimal digits, byte by byte, without a separator.

std::uint8_t hex_digit(char digit) {
  if (digit >= '0' && digit <= '9') return static_cast<std::uint8_t>(digit - '0');
  if (digit >= 'a' && digit <= 'f') return static_cast<std::uint8_t>(digit - 'a' + 10);
  refuse_line("not a hexadecimal digit");
}

void from_hex(const std::string& text, std::span<std::uint8_t> out) {
  if (text.size() != 2 * out.size()) refuse_line("not as many digits as expected");
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<std::uint8_t>((hex_digit(text[2 * i]) << 4U) | hex_digit(text[2 * i + 1]));
}

Digest digest_from(const Json& text) {
  Digest digest;
  from_hex(text.get<std::string>(), digest.bytes);
  return digest;
}

std::string hex_of(std::span<const std::uint8_t> bytes) {
  constexpr auto digits = "0123456789abcdef";
  std::string out;
  for (const auto byte : bytes) {
    out += digits[byte >> 4U];
    out += digits[byte & 15U];
  }
  return out;
}

using SketchBytes = std::array<std::uint8_t, sizeof(Sketch)>;

Sketch sketch_from(const Json& text) {
  SketchBytes bytes{};
  from_hex(text.get<std::string>(), bytes);
  return std::bit_cast<Sketch>(bytes);
}

constexpr std::size_t short_bytes = sizeof(ShortDigest);

std::string hex_of_digests(std::span<const ShortDigest> digests) {
  std::vector<std::uint8_t> bytes;
  for (const auto digest : digests) {
    for (std::size_t i = 0; i < short_bytes; ++i)
      bytes.push_back(static_cast<std::uint8_t>(digest >> (8 * (short_bytes - 1 - i))));
  }
  return hex_of(bytes);
}

std::vector<ShortDigest> digests_from(const Json& text, std::size_t count) {
  std::vector<std::uint8_t> bytes(count * short_bytes);
  from_hex(text.get<std::string>(), bytes);
  std::vector<ShortDigest> out(count);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    out[i / short_bytes] = (out[i / short_bytes] << 8U) | bytes[i];
  return out;
}

// ---- one object each ----

Json json_of_line(const AuditStart& line) {
  return {{"start", states.at(static_cast<std::size_t>(line.state))},
          {"version", audit_version},
          {"member", line.member},
          {"step", line.step},
          {"time", line.time},
          {"machine", line.machine}};
}

Json json_of_ranges(const std::vector<SampleRange>& samples) {
  auto ranges = Json::array();
  for (const auto& range : samples) ranges.push_back({range.track, range.begin, range.end});
  return ranges;
}

Json json_of_line(const AuditTrained& line) {
  Json json{{"trained", json_of_ranges(line.samples)}, {"step", line.step}};
  if (line.others > 0) json["others"] = line.others;
  return json;
}

Json json_of_line(const AuditApplied& line) {
  return {{"applied", line.round},
          {"fragment", line.fragment},
          {"between_steps", line.between_steps},
          {"chain", hex_of_digests({&line.chain, 1})},
          {"samples", json_of_ranges(line.samples)}};
}
Json json_of_line(const AuditSpeeds& line) { return {{"speeds", {line.own, line.reference}}}; }
Json json_of_line(const AuditSnapshot& line) { return {{"snapshot", line.step}}; }

Json json_of_line(const AuditCheckpoint& line) {
  auto sections = Json::object();
  for (const auto& [name, digest] : line.sections) sections[name] = digest.hex();
  return {{"checkpoint", line.step}, {"sections", sections}};
}

Json json_of_line(const AuditReceipts& line) {
  auto contributions = Json::array();
  for (const auto& received : line.contributions) {
    contributions.push_back({{"member", received.member},
                             {"weight", received.weight},
                             {"kept", received.kept},
                             {"bytes", hex_of_digests(received.bytes)},
                             {"sketch", hex_of(std::bit_cast<SketchBytes>(received.sketch))}});
  }
  return {{"received", line.round},
          {"fragment", line.fragment},
          {"chunks", line.chunks},
          {"results", hex_of_digests(line.results)},
          {"contributions", contributions}};
}

// ---- and back ----

AuditStart start_from(const Json& json) {
  if (json.at("version") != audit_version) refuse_line("another version");
  const auto state = std::ranges::find(states, json.at("start").get<std::string>());
  if (state == states.end()) refuse_line("unknown kind of start");
  return {.member = json.at("member"),
          .state = static_cast<AuditStart::State>(state - states.begin()),
          .step = json.at("step"),
          .time = json.at("time"),
          .machine = json.at("machine")};
}

std::vector<SampleRange> ranges_from(const Json& json) {
  std::vector<SampleRange> samples;
  for (const auto& range : json) {
    samples.push_back({range.at(0), range.at(1), range.at(2)});
    if (!samples.back().sound()) refuse_line("not a range of samples");
  }
  return samples;
}

AuditTrained trained_from(const Json& json) {
  return {.step = json.at("step"),
          .samples = ranges_from(json.at("trained")),
          .others = json.value("others", std::uint64_t{0})};
}

AuditSpeeds speeds_from(const Json& json) {
  const auto& speeds = json.at("speeds");
  return {.own = speeds.at(0), .reference = speeds.at(1)};
}

AuditCheckpoint checkpoint_from(const Json& json) {
  AuditCheckpoint line{.step = json.at("checkpoint")};
  for (const auto& [name, digest] : json.at("sections").items()) line.sections[name] = digest_from(digest);
  return line;
}

AuditReceipts receipts_from(const Json& json) {
  AuditReceipts line{
      .fragment = json.at("fragment"), .round = json.at("received"), .chunks = json.at("chunks")};
  line.results = digests_from(json.at("results"), line.chunks.size());
  for (const auto& received : json.at("contributions")) {
    line.contributions.push_back({.member = received.at("member"),
                                  .weight = received.at("weight"),
                                  .kept = received.at("kept"),
                                  .bytes = digests_from(received.at("bytes"), line.chunks.size()),
                                  .sketch = sketch_from(received.at("sketch"))});
  }
  // A second entry could pass for another one than the reader takes.
  std::set<std::string> members;
  for (const auto& received : line.contributions) members.insert(received.member);
  if (members.size() != line.contributions.size() ||
      std::set(line.chunks.begin(), line.chunks.end()).size() != line.chunks.size())
    refuse_line("a member or a chunk twice");
  return line;
}

AuditLine line_from(const Json& json) {
  if (json.contains("start")) return start_from(json);
  if (json.contains("trained")) return trained_from(json);
  if (json.contains("applied"))
    return AuditApplied{.fragment = json.at("fragment"),
                        .round = json.at("applied"),
                        .between_steps = json.at("between_steps"),
                        .chain = digests_from(json.at("chain"), 1).front(),
                        .samples = ranges_from(json.at("samples"))};
  if (json.contains("speeds")) return speeds_from(json);
  if (json.contains("snapshot")) return AuditSnapshot{json.at("snapshot")};
  if (json.contains("checkpoint")) return checkpoint_from(json);
  return receipts_from(json);
}

}  // namespace

ShortDigest short_digest(const Digest& digest) {
  ShortDigest out = 0;
  for (std::size_t i = 0; i < short_bytes; ++i) out = (out << 8U) | digest.bytes[i];
  return out;
}

Json audit_json(const AuditLine& line) {
  return std::visit([](const auto& of_kind) { return json_of_line(of_kind); }, line);
}

std::optional<AuditLine> audit_line(const std::string& text) {
  const auto json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  try {
    return line_from(json);
  } catch (const std::exception&) {  // of nlohmann-json, or refuse's
    return std::nullopt;
  }
}

}  // namespace isthmus::app
