#pragma once
// The certificate authority of one run: a root, and a certificate for every process. A certificate names the
// run (O), the process (CN), which no other process can then claim to be, and its role (OU, role.h).
//
//   certs/RUN/ca.pem, ca.key     the root; the key stays where certificates are issued
//   certs/RUN/ca.crl             revoked certificates, once there are any
//   certs/RUN/issued             a line for each certificate: serial number, name, end (seconds since 1970)
//   certs/RUN/lock               held by the process that writes these files
//   certs/RUN/invitations/       invitations by token (invitations.h)
//   certs/RUN/NAME/              ca.pem, cert.pem (with its private key), ca.crl: the files for that process

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
  /// Creates the root of a run in `folder`, which only its owner can enter. Throws Error(config) if there is
  /// one already or `run` is not a valid name, Error(data) if it cannot be written.
  [[nodiscard]] static Authority create(const std::filesystem::path& folder, const std::string& run);
  /// Opens the authority in `folder`. Throws Error(data) with the file that is missing or damaged.
  [[nodiscard]] static Authority open(const std::filesystem::path& folder);

  /// Creates a key and a certificate for `name`, valid for `days` from now, in a folder of that name; returns
  /// the folder. Existing files are replaced one by one, so that a running process may load the new ones. The
  /// old certificate stays valid until it is revoked or expires.
  std::filesystem::path issue(const std::string& name, int days, Role role) const;
  /// Likewise, with the usual role of the name.
  std::filesystem::path issue(const std::string& name, int days) const {
    return issue(name, days, usual_role(name));
  }
  /// Creates an invitation and returns its secret (Invitations::add).
  [[nodiscard]] Secret invite(const std::string& name, Role role, Invitations::Time now,
                              std::chrono::seconds lifetime, int days) const;
  /// The certificate for the invitation with this secret and the key of `request` (PKCS#10 in PEM; the names
  /// in it are ignored). An invitation gives one certificate, which the same key may get again until the
  /// invitation ends or the name is revoked. Throws Error(network) for an invalid request (tls/request.h).
  [[nodiscard]] Invitations::Verdict enrol(const Secret& secret, const std::string& request,
                                           Invitations::Time now) const;
  /// Revokes all certificates of `name` and ends its invitations. Writes ca.crl here and into the folders of
  /// all names; processes that have it next to their certificate then refuse the revoked ones. Entries that
  /// expired a week ago are dropped. Throws Error(config) if there was nothing to revoke, Error(data) if the
  /// list would be too long for processes to read.
  void revoke(const std::string& name) const;

  [[nodiscard]] const std::string& run() const { return run_; }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// SHA-256 of the root's certificate (DER).
  [[nodiscard]] Digest fingerprint() const;

 private:
  Authority(std::filesystem::path folder, std::string run)
      : folder_(std::move(folder)), run_(std::move(run)) {}
  /// Creates a certificate, records it in `issued`, and returns it in PEM.
  [[nodiscard]] std::string certify(evp_pkey_st* key, const std::string& name, int days, Role role) const;

  std::filesystem::path folder_;
  std::string run_;
};

}  // namespace isthmus::outer_sync::tls
