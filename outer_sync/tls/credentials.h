#pragma once
// Who this process is and whom it believes: its certificate and the root of the run, as files that may change
// while it runs.

#include <array>
#include <asio/ssl/context.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "isthmus/outer_sync/config/config.h"
#include "tls/openssl.h"

namespace isthmus::outer_sync::tls {

/// Of one thread.
class Credentials {
 public:
  /// Reads ca.pem, cert.pem (a certificate with its private key) and, where it is there, ca.crl. Throws
  /// Error(data) naming the file that is missing or wrong, or when the certificate is not of that root, has
  /// ended or was revoked.
  explicit Credentials(std::filesystem::path folder);

  /// For connections that begin now: TLS 1.3 alone, both ends show a certificate of this run.
  [[nodiscard]] asio::ssl::context& context() const { return *now_.context; }
  /// Of this process's certificate.
  [[nodiscard]] const std::string& name() const { return now_.name; }
  [[nodiscard]] const std::string& run() const { return now_.run; }

  /// Reads the files again if any of them has changed. While the new ones cannot be read or are wrong, the
  /// old ones stay in force, and each call tries again. Returns what there is to say about it that has not
  /// been said.
  [[nodiscard]] std::optional<std::string> refresh();
  /// Whether a certificate of this run has been revoked. `serial`: hexadecimal digits.
  [[nodiscard]] bool revoked(const std::string& serial) const;

 private:
  struct Files {
    std::unique_ptr<asio::ssl::context> context;
    std::string name, run;
    RevocationList revoked;  ///< null: nobody was
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
  Stamps stamps_;  ///< of the files that are in force
  Files now_;
  std::string problem_;  ///< with newer ones, as it was said last
};

}  // namespace isthmus::outer_sync::tls

namespace isthmus::outer_sync {

/// Null where `network.certs` names no folder: connections are then open to whoever sees or changes packets.
[[nodiscard]] std::shared_ptr<tls::Credentials> credentials_of(const NetworkConfig& network);

}  // namespace isthmus::outer_sync
