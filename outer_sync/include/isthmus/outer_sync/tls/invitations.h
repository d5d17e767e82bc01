#pragma once
// Invitations that an authority has given out: who may come, until when, and what has come of it. The secrets
// themselves are not kept. Used by Authority alone, which holds the folder's lock.
//
//   certs/RUN/invitations/HASH   HASH: SHA-256 of the secret. Its first line: the name, when it ends (seconds
//                                since 1970), days that the certificate is good for, `-` or SHA-256 of the
//                                key that used it, and the role (none: the usual one of the name). After it
//                                the certificate that was issued for it, in PEM.

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/tls/join_token.h"
#include "isthmus/outer_sync/tls/role.h"

namespace isthmus::outer_sync::tls {

class Invitations {
 public:
  using Time = std::chrono::system_clock::time_point;

  /// Of the authority in `folder`.
  explicit Invitations(const std::filesystem::path& folder) : folder_(folder / "invitations") {}

  /// Returns the secret of a new one, whose hash is on disk then. What ended a week ago goes. Throws
  /// Error(config) when there are too many, Error(data) when it cannot be written.
  [[nodiscard]] Secret add(const std::string& name, Role role, Time now, std::chrono::seconds lifetime,
                           int days) const;

  /// The end of the invitation that ends last; nullopt without any. A coordinator listens to newcomers until
  /// then.
  [[nodiscard]] std::optional<Time> last_end() const;

  /// What an invitation entitles to, or why it does not, for the log here: a stranger is not told.
  struct Verdict {
    std::string name{};         ///< of the invitation; empty for an unknown secret
    std::string certificate{};  ///< in PEM; empty if it is refused
    std::string why{};
  };
  using Certify = std::function<std::string(const std::string& name, Role role, int days)>;
  /// Uses the invitation with this secret up for the key of this hash and the certificate that `certify`
  /// makes for it. The same key gets the same certificate again until the invitation ends: its owner may not
  /// have got the answer.
  [[nodiscard]] Verdict redeem(const Secret& secret, const Digest& key, Time now,
                               const Certify& certify) const;

  /// Ends all of a name, used or not. Returns how many there were.
  std::size_t withdraw(const std::string& name) const;

 private:
  struct Invitation {
    std::string hash, name{}, key{}, certificate{};
    Time ends{};
    int days = 0;
    Role role = Role::trainer;
  };
  [[nodiscard]] std::vector<Invitation> read() const;
  void write(const Invitation& invitation) const;

  std::filesystem::path folder_;
};

}  // namespace isthmus::outer_sync::tls
