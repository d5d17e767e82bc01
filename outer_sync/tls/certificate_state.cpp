#include "isthmus/outer_sync/tls/certificate_state.h"

#include <ctime>

#include "tls/credentials.h"
#include "tls/openssl.h"

namespace isthmus::outer_sync::tls {

namespace fs = std::filesystem;

CertificateState certificate_state(const fs::path& folder) {
  const Credentials credentials(folder);  // checks the files
  const auto file = folder / "cert.pem";
  const auto own = read_certificate(file);
  std::tm ends{};
  need(ASN1_TIME_to_tm(X509_get0_notAfter(own.get()), &ends), file.string() + " has no expiry time");
  constexpr auto others = fs::perms::group_all | fs::perms::others_all;
  return {.name = credentials.name(),
          .run = credentials.run(),
          .ends = std::chrono::system_clock::from_time_t(::timegm(&ends)),
          .authority = fingerprint_of(read_certificate(folder / "ca.pem").get()),
          .others_read_key = (fs::status(file).permissions() & others) != fs::perms::none,
          .has_revocations = fs::exists(folder / "ca.crl"),
          .has_authority_key = fs::exists(folder / "ca.key") || fs::exists(folder.parent_path() / "ca.key")};
}

}  // namespace isthmus::outer_sync::tls
