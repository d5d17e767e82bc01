#pragma once
// The certificate authority of one run: its own root, and a certificate for every process that takes part. A
// certificate names the run (O) and the process (CN), which nobody else may then claim to be, and what that
// process may do in the run (OU, role.h).
//
//   certs/RUN/ca.pem, ca.key     the root; the key stays where certificates are issued
//   certs/RUN/ca.crl             revoked certificates, once there are any
//   certs/RUN/issued             a line for each certificate: serial number, name, end (seconds since 1970)
//   certs/RUN/lock               held by the process that writes these files
//   certs/RUN/invitations/       who may come by a token (invitations.h)
//   certs/RUN/NAME/              ca.pem, cert.pem (with its private key), ca.crl: what that process gets

#include <filesystem>
#include <string>

#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/tls/invitations.h"
#include "isthmus/outer_sync/tls/role.h"

struct evp_pkey_st;

namespace isthmus::outer_sync::tls {

/// The name in the certificate of a coordinator. No replica may have it.
inline constexpr const char* coordinator_name = "coordinator";

class Authority {
 public:
  /// Makes the root of a run in `folder`, which only its owner can enter. Throws Error(config) when
  /// there is one, or `run` is no name, and Error(data) when it cannot be written.
  [[nodiscard]] static Authority create(const std::filesystem::path& folder, const std::string& run);
  /// Throws Error(data) naming the file that is missing or damaged.
  [[nodiscard]] static Authority open(const std::filesystem::path& folder);

  /// A new key and certificate for `name`, good from now for so many days, in a folder of that name. What
  /// was there is replaced, file by file, so that a process which is running may take the new one up; the old
  /// certificate stays good until it is revoked or ends. Returns the folder.
  std::filesystem::path issue(const std::string& name, int days, Role role) const;
  /// With the usual role of the name.
  std::filesystem::path issue(const std::string& name, int days) const {
    return issue(name, days, usual_role(name));
  }
  /// The secret of a new invitation (Invitations::add).
  [[nodiscard]] Secret invite(const std::string& name, Role role, Invitations::Time now,
                              std::chrono::seconds lifetime, int days) const;
  /// The certificate of the invitation with this secret, for the key of a request (PKCS#10 in PEM, whose own
  /// names do not count): one for an invitation, which the same key gets again until the invitation ends or
  /// the name is revoked. Throws Error(network) for what is no request of `tls/request.h`.
  [[nodiscard]] Invitations::Verdict enrol(const Secret& secret, const std::string& request,
                                           Invitations::Time now) const;
  /// Every certificate issued to `name` so far is good no more, and its invitations have ended, used or not.
  /// Writes ca.crl, here and into the folders of all names; each process with a copy of `ca.crl` beside its
  /// certificate refuses them from then on. What has expired a week ago leaves the list. Throws Error(config)
  /// when there was neither, Error(data) when the list would be too long for processes to read.
  void revoke(const std::string& name) const;

  [[nodiscard]] const std::string& run() const { return run_; }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// SHA-256 of the root's certificate (DER).
  [[nodiscard]] Digest fingerprint() const;

 private:
  Authority(std::filesystem::path folder, std::string run)
      : folder_(std::move(folder)), run_(std::move(run)) {}
  /// On record, in PEM.
  [[nodiscard]] std::string certify(evp_pkey_st* key, const std::string& name, int days, Role role) const;

  std::filesystem::path folder_;
  std::string run_;
};

}  // namespace isthmus::outer_sync::tls
