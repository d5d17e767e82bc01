#pragma once
// Owning pointers for OpenSSL's objects, its errors as text, and helpers.

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "isthmus/base/error.h"
#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/tls/role.h"

namespace isthmus::outer_sync::tls {

template <auto free>
struct Free {
  template <class T>
  void operator()(T* object) const {
    free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Request = std::unique_ptr<X509_REQ, Free<X509_REQ_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using RevocationList = std::unique_ptr<X509_CRL, Free<X509_CRL_free>>;
using Memory = std::unique_ptr<BIO, Free<BIO_free>>;
using Number = std::unique_ptr<BIGNUM, Free<BN_free>>;
using Serial = std::unique_ptr<ASN1_INTEGER, Free<ASN1_INTEGER_free>>;
using Moment = std::unique_ptr<ASN1_TIME, Free<ASN1_TIME_free>>;

/// Text of the last error.
[[nodiscard]] inline std::string openssl_error() {
  const auto code = ERR_get_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(code);
  return reason == nullptr ? "unknown error" : reason;
}

template <class T>
T* need(T* object, const std::string& what) {
  if (object == nullptr) throw Error(ErrorKind::data, what + ": " + openssl_error());
  return object;
}
inline void need(int ok, const std::string& what) {
  if (ok <= 0) throw Error(ErrorKind::data, what + ": " + openssl_error());
}

/// Throws Error(data) if the file system cannot answer.
[[nodiscard]] bool is_there(const std::filesystem::path& file);

[[nodiscard]] Certificate read_certificate(const std::filesystem::path& file);
[[nodiscard]] Key read_key(const std::filesystem::path& file);
[[nodiscard]] RevocationList read_revocations(const std::filesystem::path& file);

/// Throw Error(data) like the functions above; `what` names the origin of the text.
[[nodiscard]] Certificate certificate_from(std::string_view pem, const std::string& what);
[[nodiscard]] Key key_from(std::string_view pem, const std::string& what);
[[nodiscard]] Request request_from(std::string_view pem, const std::string& what);

[[nodiscard]] std::string pem_of(X509* certificate);
[[nodiscard]] std::string pem_of(EVP_PKEY* key);  ///< private key, without a passphrase
[[nodiscard]] std::string pem_of(X509_REQ* request);
[[nodiscard]] std::string pem_of(X509_CRL* list);

/// Maximum size of a revocation list file: some 20,000 certificates. Processes read no longer ones, so none
/// is written.
inline constexpr std::size_t max_revoked_text = std::size_t{1} << 20;

[[nodiscard]] Key new_key();  ///< P-256
/// SHA-256 of its DER.
[[nodiscard]] Digest fingerprint_of(const X509* certificate);
/// SHA-256 of a public key's DER.
[[nodiscard]] Digest fingerprint_of(EVP_PKEY* key);

/// An entry of the subject: NID_commonName, NID_organizationName, NID_organizationalUnitName. Empty if it is
/// missing or there are several.
[[nodiscard]] std::string subject_entry(const X509* certificate, int nid);
/// The role in the OU of its subject, or the usual one of its name. Throws Error(network) for an unknown
/// role.
[[nodiscard]] Role role_of(const X509* certificate);
/// Serial number in hexadecimal digits.
[[nodiscard]] std::string text_of(const ASN1_INTEGER* serial);

}  // namespace isthmus::outer_sync::tls
