#pragma once
// Summary of a process's certificate files, for checks before a run.

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
  bool has_revocations = false;    ///< ca.crl exists
  bool has_authority_key = false;  ///< ca.key exists, here or in the parent folder
};

/// Throws Error(data) with the file that is missing or wrong, or if the certificate is not signed by that
/// root, has expired or was revoked.
[[nodiscard]] CertificateState certificate_state(const std::filesystem::path& folder);

}  // namespace isthmus::outer_sync::tls
