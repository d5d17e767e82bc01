#pragma once
// An authority's invitations: for which names, until when, and whether they were used. The secrets are not
// kept. Used only by Authority, which holds the folder's lock.
//
//   certs/RUN/invitations/HASH   HASH: SHA-256 of the secret. First line: the name, when it ends (seconds
//                                since 1970), days for which the certificate is valid, `-` or SHA-256 of the
//                                key that used it, and the role (absent: the usual one of the name). Then
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

  /// `folder`: the authority's.
  explicit Invitations(const std::filesystem::path& folder) : folder_(folder / "invitations") {}

  /// Creates an invitation, writes its hash to disk and returns its secret. Deletes invitations that ended a
  /// week ago. Throws Error(config) if there are too many, Error(data) if it cannot be written.
  [[nodiscard]] Secret add(const std::string& name, Role role, Time now, std::chrono::seconds lifetime,
                           int days) const;

  /// The latest end of all invitations; nullopt without any. A coordinator accepts newcomers until then.
  [[nodiscard]] std::optional<Time> last_end() const;

  /// The result of redeeming an invitation. The reason is for this side's log: strangers do not get it.
  struct Verdict {
    std::string name{};         ///< name in the invitation; empty for an unknown secret
    std::string certificate{};  ///< in PEM; empty if it is refused
    std::string why{};
  };
  using Certify = std::function<std::string(const std::string& name, Role role, int days)>;
  /// Redeems the invitation with this secret for the key with this hash, and a certificate from `certify`.
  /// The same key gets the same certificate again until the invitation ends, since the answer may have been
  /// lost.
  [[nodiscard]] Verdict redeem(const Secret& secret, const Digest& key, Time now,
                               const Certify& certify) const;

  /// Ends all invitations of a name, used or not. Returns their number.
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
