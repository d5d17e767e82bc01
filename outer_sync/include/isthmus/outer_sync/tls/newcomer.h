#pragma once
// The folder of a machine that joins by a token. It contains
//
//   key.pem                      its private key, from before the first request until it has a certificate
//   cert.pem, ca.pem, ca.crl     after that, as in every process's folder
//
// A machine that was interrupted continues with the same key; once used, the invitation is valid only for
// that key.

#include <filesystem>
#include <string>

#include "isthmus/outer_sync/tls/enrolment.h"
#include "isthmus/outer_sync/tls/join_token.h"

namespace isthmus::outer_sync::tls {

class NewcomerFolder {
 public:
  explicit NewcomerFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Whether it has its certificate.
  [[nodiscard]] bool enrolled() const { return std::filesystem::exists(folder_ / "cert.pem"); }
  /// Creates the folder and the key if missing, readable by their owner only. Returns the request for them.
  /// Throws Error(data) with the file.
  [[nodiscard]] EnrolmentRequest request(const JoinToken& token) const;
  /// Writes the answer's files into the folder, the certificate last. Throws Error(network), with nothing
  /// written, if the certificate is not of the token's authority, run and name, or not for this folder's key.
  void complete(const JoinToken& token, const EnrolmentAnswer& answer) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace isthmus::outer_sync::tls
