#pragma once
// Invitations that an authority has given out: who may come, until when, and with which key somebody has. The
// secrets themselves are not kept. Each is a file of its own, so that `isthmus certs invite` and a
// coordinator that runs never write the same one.
//
//   certs/RUN/invitations/HASH      HASH: SHA-256 of the secret; in it the name, when it ends (seconds since
//   1970),
//                                   days that the certificate is good for, and `-` or SHA-256 of the key that
//                                   used it

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/tls/join_token.h"

namespace isthmus::outer_sync::tls {

class Invitations {
 public:
  using Time = std::chrono::system_clock::time_point;

  /// Of the authority in `folder`.
  explicit Invitations(const std::filesystem::path& folder) : folder_(folder / "invitations") {}

  /// Returns the secret of a new one, whose hash is on disk then. What ended a week ago goes. Throws
  /// Error(config) when there are too many, Error(data) when it cannot be written.
  [[nodiscard]] Secret add(const std::string& name, Time now, std::chrono::seconds lifetime, int days) const;

  /// Whether anybody may come: as long as nobody is invited, who has no certificate is not heard at all.
  [[nodiscard]] bool open(Time now) const;

  /// What an invitation entitles to, or why it does not, for the log here: a stranger is not told.
  struct Verdict {
    std::string name{};  ///< empty where it is not good
    int days = 0;
    std::string why{};
  };
  /// Uses the invitation with this secret up for the key of this hash, which is on disk when this returns.
  /// The same key may do so again until the invitation ends: its owner may not have got the answer.
  [[nodiscard]] Verdict redeem(const Secret& secret, const Digest& key, Time now) const;

 private:
  struct Invitation {
    std::string hash, name{}, key{};
    Time ends{};
    int days = 0;
  };
  [[nodiscard]] std::vector<Invitation> read() const;
  void write(const Invitation& invitation) const;

  std::filesystem::path folder_;
};

}  // namespace isthmus::outer_sync::tls
