#include "tls/openssl.h"

#include <array>
#include <fstream>

namespace isthmus::outer_sync::tls {

namespace {

constexpr std::size_t most_text = std::size_t{64} << 10;

Memory memory_of(const std::string& text) {
  return Memory(need(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), "memory"));
}

/// A key with a passphrase would ask for it on the terminal.
int no_passphrase(char*, int, int, void*) { return 0; }

}  // namespace

std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text(most_text, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.eof()) {
    throw Error(ErrorKind::data,
                "cannot read " + file.string() +
                    (in ? ": it has more than 64 KiB" : ": is it there, and yours to read?"));
  }
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

Certificate read_certificate(const std::filesystem::path& file) {
  const auto text = read_text(file);
  return Certificate(need(PEM_read_bio_X509(memory_of(text).get(), nullptr, no_passphrase, nullptr),
                          file.string() + " holds no certificate in PEM"));
}

Key read_key(const std::filesystem::path& file) {
  const auto text = read_text(file);
  return Key(need(PEM_read_bio_PrivateKey(memory_of(text).get(), nullptr, no_passphrase, nullptr),
                  file.string() + " holds no private key in PEM without a passphrase"));
}

RevocationList read_revocations(const std::filesystem::path& file) {
  const auto text = read_text(file);
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

std::string text_of(const ASN1_INTEGER* serial) {
  const Number number(need(ASN1_INTEGER_to_BN(serial, nullptr), "a serial number"));
  char* digits = need(BN_bn2hex(number.get()), "a serial number");
  std::string text = digits;
  OPENSSL_free(digits);
  return text;
}

}  // namespace isthmus::outer_sync::tls
