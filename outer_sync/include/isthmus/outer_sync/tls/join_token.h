#pragma once
// An invitation as one word, which takes a machine from nothing to its certificate: where the coordinator is,
// by what its authority is known, and a secret that is good once. Whoever has the word can take the place
// that it names until somebody has.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "isthmus/base/hash.h"

namespace isthmus::outer_sync::tls {

/// By chance: too many to be guessed.
struct Secret {
  std::array<std::uint8_t, 16> bytes{};
  friend bool operator==(const Secret&, const Secret&) = default;
  [[nodiscard]] Digest digest() const;  ///< SHA-256, which is all that the inviting side keeps
  template <class Archive>
  void serialize(Archive& ar) {
    for (auto& byte : bytes) ar(byte);
  }
};

struct JoinToken {
  std::string run;          ///< of the authority
  std::string name;         ///< that the newcomer gets
  std::string coordinator;  ///< HOST:PORT, or several with commas between
  Digest authority;         ///< SHA-256 of its root's certificate (DER)
  Secret secret;
  friend bool operator==(const JoinToken&, const JoinToken&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(run, name, coordinator, authority, secret);
  }
};

/// What every token begins with.
inline constexpr std::string_view token_prefix = "isthmus1.";
/// Letters, digits, '-', '_' and '.' alone: fit for a command line and for a mail.
[[nodiscard]] std::string to_text(const JoinToken& token);
/// What `to_text` wrote, and nothing else. Throws Error(config) saying what is wrong, without the token.
[[nodiscard]] JoinToken parse_token(std::string_view text);

/// What a run or a process may be called in certificates, and so in names of folders. Throws Error(config)
/// naming `what`.
void check_word(const std::string& what, const std::string& word);

}  // namespace isthmus::outer_sync::tls
