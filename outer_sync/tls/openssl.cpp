#include "tls/openssl.h"

#include <array>
#include <span>

#include "isthmus/base/text_file.h"

namespace isthmus::outer_sync::tls {

namespace {

constexpr std::size_t max_text_bytes = std::size_t{64} << 10;

Memory memory_of(std::string_view text) {
  return Memory(need(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), "memory"));
}

/// Without this, OpenSSL would ask for a passphrase on the terminal.
int no_passphrase(char*, int, int, void*) { return 0; }

template <class Write>
std::string pem(Write write) {
  const Memory memory(need(BIO_new(BIO_s_mem()), "memory"));
  need(write(memory.get()), "cannot write PEM");
  char* data = nullptr;
  const auto size = BIO_get_mem_data(memory.get(), &data);
  return {data, static_cast<std::size_t>(size)};
}

/// SHA-256 of the output of an `i2d` function of OpenSSL.
template <class Write>
Digest hash_of_der(Write write) {
  unsigned char* der = nullptr;
  const int size = write(&der);
  need(size, "cannot write DER");
  const auto digest = hash_of(std::as_bytes(std::span(der, static_cast<std::size_t>(size))));
  OPENSSL_free(der);
  return digest;
}

}  // namespace

std::string pem_of(X509* certificate) {
  return pem([&](BIO* out) { return PEM_write_bio_X509(out, certificate); });
}
std::string pem_of(EVP_PKEY* key) {
  return pem(
      [&](BIO* out) { return PEM_write_bio_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr); });
}
std::string pem_of(X509_REQ* request) {
  return pem([&](BIO* out) { return PEM_write_bio_X509_REQ(out, request); });
}
std::string pem_of(X509_CRL* list) {
  return pem([&](BIO* out) { return PEM_write_bio_X509_CRL(out, list); });
}

Key new_key() { return Key(need(EVP_EC_gen("P-256"), "cannot make a key")); }

Digest fingerprint_of(const X509* certificate) {
  return hash_of_der([&](unsigned char** out) { return i2d_X509(certificate, out); });
}
Digest fingerprint_of(EVP_PKEY* key) {
  return hash_of_der([&](unsigned char** out) { return i2d_PUBKEY(key, out); });
}

Certificate certificate_from(std::string_view pem, const std::string& what) {
  return Certificate(need(PEM_read_bio_X509(memory_of(pem).get(), nullptr, no_passphrase, nullptr),
                          what + " holds no certificate in PEM"));
}

Key key_from(std::string_view pem, const std::string& what) {
  return Key(need(PEM_read_bio_PrivateKey(memory_of(pem).get(), nullptr, no_passphrase, nullptr),
                  what + " holds no private key in PEM without a passphrase"));
}

Request request_from(std::string_view pem, const std::string& what) {
  return Request(need(PEM_read_bio_X509_REQ(memory_of(pem).get(), nullptr, no_passphrase, nullptr),
                      what + " holds no signing request in PEM"));
}

bool is_there(const std::filesystem::path& file) {
  std::error_code error;
  const bool there = std::filesystem::exists(file, error);
  if (error) throw Error(ErrorKind::data, "cannot look for " + file.string() + ": " + error.message());
  return there;
}

Certificate read_certificate(const std::filesystem::path& file) {
  return certificate_from(read_text(file, max_text_bytes), file.string());
}

Key read_key(const std::filesystem::path& file) {
  return key_from(read_text(file, max_text_bytes), file.string());
}

RevocationList read_revocations(const std::filesystem::path& file) {
  const auto text = read_text(file, max_revoked_text);
  return RevocationList(need(PEM_read_bio_X509_CRL(memory_of(text).get(), nullptr, no_passphrase, nullptr),
                             file.string() + " holds no revocation list in PEM"));
}

std::string subject_entry(const X509* certificate, int nid) {
  const auto* subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, nid, -1);
  if (at < 0 || X509_NAME_get_index_by_NID(subject, nid, at) >= 0) return {};
  const auto* data = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(data)),
          static_cast<std::size_t>(ASN1_STRING_length(data))};
}

Role role_of(const X509* certificate) {
  const auto* subject = X509_get_subject_name(certificate);
  if (X509_NAME_get_index_by_NID(subject, NID_organizationalUnitName, -1) < 0)
    return usual_role(subject_entry(certificate, NID_commonName));
  const auto word = subject_entry(certificate, NID_organizationalUnitName);
  if (const auto role = role_from(word)) return *role;
  throw Error(ErrorKind::network, "its certificate has role '" + word.substr(0, 64) +
                                      "', which is unknown here; use the same build");
}

std::string text_of(const ASN1_INTEGER* serial) {
  const Number number(need(ASN1_INTEGER_to_BN(serial, nullptr), "a serial number"));
  char* digits = need(BN_bn2hex(number.get()), "a serial number");
  std::string text = digits;
  OPENSSL_free(digits);
  return text;
}

}  // namespace isthmus::outer_sync::tls
