#pragma once
// What the files of a process's certificate come to, for who wants to know before a run begins.

#include <chrono>
#include <filesystem>
#include <string>

#include "isthmus/base/hash.h"

namespace isthmus::outer_sync::tls {

struct CertificateState {
  std::string name, run;
  std::chrono::system_clock::time_point ends;
  Digest authority;                ///< SHA-256 of the root's certificate (DER)
  bool others_read_key = false;    ///< by the permissions of cert.pem
  bool has_revocations = false;    ///< ca.crl is there
  bool has_authority_key = false;  ///< so is ca.key, here or one above
};

/// Throws Error(data) naming the file that is missing or wrong, or when the certificate is not of that root,
/// has ended or was revoked.
[[nodiscard]] CertificateState certificate_state(const std::filesystem::path& folder);

}  // namespace isthmus::outer_sync::tls
