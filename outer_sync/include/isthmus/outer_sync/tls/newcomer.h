#pragma once
// The folder of a machine that comes by a token. It holds
//
//   key.pem                      its private key, from before anything is sent until there is a certificate
//   cert.pem, ca.pem, ca.crl     then, as in every process's folder
//
// so whoever is stopped at any point goes on with the same key, for which alone the invitation is good from
// its first use on.

#include <filesystem>
#include <string>

#include "isthmus/outer_sync/tls/enrolment.h"
#include "isthmus/outer_sync/tls/join_token.h"

namespace isthmus::outer_sync::tls {

class NewcomerFolder {
 public:
  explicit NewcomerFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// It has its certificate.
  [[nodiscard]] bool enrolled() const { return std::filesystem::exists(folder_ / "cert.pem"); }
  /// Makes folder and key unless they are there, readable by their owner alone. Returns the request for them.
  /// Throws Error(data) naming the file.
  [[nodiscard]] EnrolmentRequest request(const JoinToken& token) const;
  /// Puts what came into the folder, the certificate last. Throws Error(network), with nothing written, when
  /// it is not of the token's authority, run and name or not for the key that was made here.
  void complete(const JoinToken& token, const EnrolmentAnswer& answer) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace isthmus::outer_sync::tls
