#include "isthmus/outer_sync/tls/join_token.h"

#include <array>
#include <span>

#include "isthmus/base/archive.h"
#include "isthmus/base/checksum.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/address.h"

namespace isthmus::outer_sync::tls {

namespace {

constexpr std::size_t longest = 2048;
constexpr std::size_t checksum_size = sizeof(std::uint32_t);
// RFC 4648, section 5, without padding.
constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

[[noreturn]] void refuse(const char* why) {
  throw Error(ErrorKind::config, std::string("the token ") + why +
                                     "; expected the whole word that `isthmus certs invite` printed");
}

std::string encode(std::span<const std::byte> bytes) {
  std::string text;
  std::uint32_t bits = 0;
  int count = 0;
  for (const auto byte : bytes) {
    bits = bits << 8U | std::to_integer<std::uint32_t>(byte);
    for (count += 8; count >= 6; count -= 6) text += alphabet[bits >> static_cast<unsigned>(count - 6) & 63U];
  }
  if (count > 0) text += alphabet[bits << static_cast<unsigned>(6 - count) & 63U];
  return text;
}

Bytes decode(std::string_view text) {
  Bytes bytes;
  std::uint32_t bits = 0;
  unsigned count = 0;
  for (const char c : text) {
    const auto value = alphabet.find(c);
    if (value == std::string_view::npos) refuse("contains an invalid character");
    bits = bits << 6U | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<std::byte>(bits >> count & 255U));
  }
  return bytes;
}

}  // namespace

Digest Secret::digest() const { return hash_of(std::as_bytes(std::span(bytes))); }

std::string to_text(const JoinToken& token) {
  auto bytes = to_bytes(token);
  const auto sum = to_bytes(crc32c(bytes));
  bytes.insert(bytes.end(), sum.begin(), sum.end());
  return std::string(token_prefix) + encode(bytes);
}

JoinToken parse_token(std::string_view text) {
  if (!text.starts_with(token_prefix)) refuse("does not begin with 'isthmus1.'");
  if (text.size() > longest) refuse("is too long");
  const auto bytes = decode(text.substr(token_prefix.size()));
  if (bytes.size() <= checksum_size) refuse("is too short");
  const auto body = std::span(bytes).first(bytes.size() - checksum_size);
  if (from_bytes<std::uint32_t>(std::span(bytes).last(checksum_size)) != crc32c(body))
    refuse("is not complete, or has been changed (its checksum is wrong)");
  JoinToken token;
  try {
    token = from_bytes<JoinToken>(body);
  } catch (const Error&) {
    refuse("was made by another version of this program");
  }
  check_word("the token's run", token.run);
  check_word("the token's name", token.name);
  (void)parse_addresses(token.coordinator, "the token's coordinator");
  if (to_text(token) != text) refuse("has been changed");  // a token has only one form
  return token;
}

void check_word(const std::string& what, const std::string& word) {
  const bool plain =
      !word.empty() && word.size() <= 64 && word.front() != '.' &&
      word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
          std::string::npos;
  if (!plain) {
    throw Error(ErrorKind::config, what + " is '" + word +
                                       "'; expected up to 64 letters, digits, '.', '_' and '-', not "
                                       "beginning with '.'");
  }
}

}  // namespace isthmus::outer_sync::tls
