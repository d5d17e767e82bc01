#pragma once
// This process's certificate and the run's root, read from files that may change while it runs.

#include <array>
#include <asio/ssl/context.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "isthmus/outer_sync/config/config.h"
#include "tls/openssl.h"

namespace isthmus::outer_sync::tls {

/// Used on one thread only.
class Credentials {
 public:
  /// Reads ca.pem, cert.pem (certificate and private key) and, if present, ca.crl. Throws Error(data) with
  /// the file that is missing or wrong, or if the certificate is not signed by that root, has expired or was
  /// revoked.
  explicit Credentials(std::filesystem::path folder);

  /// For new connections: TLS 1.3 only, and both ends present a certificate of this run.
  [[nodiscard]] asio::ssl::context& context() const { return *now_.context; }
  /// Name and run in this process's certificate.
  [[nodiscard]] const std::string& name() const { return now_.name; }
  [[nodiscard]] const std::string& run() const { return now_.run; }

  /// Reads the files again if any has changed. If the new ones are unreadable or invalid, the old ones stay
  /// in force, and each call tries again. Returns a message if there is news.
  [[nodiscard]] std::optional<std::string> refresh();
  /// Whether a certificate of this run has been revoked. `serial`: hexadecimal digits.
  [[nodiscard]] bool revoked(const std::string& serial) const;

 private:
  struct Files {
    std::unique_ptr<asio::ssl::context> context;
    std::string name, run;
    RevocationList revoked;  ///< null: no certificate was revoked
  };
  struct Stamp {
    std::filesystem::file_time_type time;
    std::uintmax_t size = 0;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };
  using Stamps = std::array<Stamp, 3>;

  [[nodiscard]] Files read() const;
  [[nodiscard]] RevocationList read_revoked(X509* root) const;
  void take_up_revoked();
  [[nodiscard]] Stamps stamps() const;

  std::filesystem::path folder_;
  Stamps stamps_;  ///< of the files in force
  Files now_;
  std::string problem_;  ///< problem of newer files that was reported last
};

}  // namespace isthmus::outer_sync::tls

namespace isthmus::outer_sync {

/// Null if `network.certs` is empty: connections are then neither encrypted nor authenticated by
/// certificates.
[[nodiscard]] std::shared_ptr<tls::Credentials> credentials_of(const NetworkConfig& network);

}  // namespace isthmus::outer_sync
