#pragma once
// An invitation as one word, with all that a machine needs to get its certificate: the coordinator's address,
// the authority's fingerprint, and a secret that can be used once. Until it is used, anyone who has the token
// can enrol under its name.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "isthmus/base/hash.h"

namespace isthmus::outer_sync::tls {

/// Random, too long to be guessed.
struct Secret {
  std::array<std::uint8_t, 16> bytes{};
  friend bool operator==(const Secret&, const Secret&) = default;
  [[nodiscard]] Digest digest() const;  ///< SHA-256; the inviting side keeps only this
  template <class Archive>
  void serialize(Archive& ar) {
    for (auto& byte : bytes) ar(byte);
  }
};

struct JoinToken {
  std::string run;          ///< run of the authority
  std::string name;         ///< name for the newcomer
  std::string coordinator;  ///< HOST:PORT, or several separated by commas
  Digest authority;         ///< SHA-256 of the root's certificate (DER)
  Secret secret;
  friend bool operator==(const JoinToken&, const JoinToken&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(run, name, coordinator, authority, secret);
  }
};

/// Every token begins with this.
inline constexpr std::string_view token_prefix = "isthmus1.";
/// Consists of letters, digits, '-', '_' and '.' only: fit for a command line and for a mail.
[[nodiscard]] std::string to_text(const JoinToken& token);
/// Parses the exact output of `to_text`. Throws Error(config) with what is wrong, but without the token.
[[nodiscard]] JoinToken parse_token(std::string_view text);

/// Checks the name of a run or a process, which is used in certificates and as a folder name. Throws
/// Error(config) with `what` if it is not allowed.
void check_word(const std::string& what, const std::string& word);

}  // namespace isthmus::outer_sync::tls
