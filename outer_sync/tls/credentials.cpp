#include "tls/credentials.h"

namespace isthmus::outer_sync::tls {

namespace {

constexpr std::array<const char*, 3> file_names = {"ca.pem", "cert.pem", "ca.crl"};
/// Our chains are a root and a certificate, well below 2 KiB; strangers may not send more.
constexpr long longest_chain = 4096;

/// Applies the peers' rules, so that a process notices itself that peers would refuse its certificate.
void verify(X509_STORE* store, X509* certificate, const std::filesystem::path& file) {
  const std::unique_ptr<X509_STORE_CTX, Free<X509_STORE_CTX_free>> context(
      need(X509_STORE_CTX_new(), "a check"));
  need(X509_STORE_CTX_init(context.get(), store, certificate, nullptr), "a check");
  if (X509_verify_cert(context.get()) == 1) return;
  const int why = X509_STORE_CTX_get_error(context.get());
  // A wrong clock may be corrected soon: reported as a network error, so that the process that started this
  // one retries.
  const bool is_early = why == X509_V_ERR_CERT_NOT_YET_VALID || why == X509_V_ERR_CRL_NOT_YET_VALID;
  throw Error(is_early ? ErrorKind::network : ErrorKind::data,
              file.string() + " is not valid: " + X509_verify_cert_error_string(why) +
                  (is_early ? "; check this machine's clock" : ""));
}

}  // namespace

Credentials::Credentials(std::filesystem::path folder)
    : folder_(std::move(folder)), stamps_(stamps()), now_(read()) {}

Credentials::Files Credentials::read() const {
  Files files;
  const auto own = read_certificate(folder_ / "cert.pem");
  const auto key = read_key(folder_ / "cert.pem");
  const auto root = read_certificate(folder_ / "ca.pem");
  files.context = std::make_unique<asio::ssl::context>(asio::ssl::context::tls);
  auto* context = files.context->native_handle();
  need(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION), "TLS 1.3");
  files.context->set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
  SSL_CTX_set_max_cert_list(context, longest_chain);
  need(SSL_CTX_set_num_tickets(context, 0),
       "TLS 1.3");  // no session resumption
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  need(SSL_CTX_use_certificate(context, own.get()), (folder_ / "cert.pem").string());
  need(SSL_CTX_use_PrivateKey(context, key.get()), (folder_ / "cert.pem").string());
  auto* store = SSL_CTX_get_cert_store(context);
  need(X509_STORE_add_cert(store, root.get()), (folder_ / "ca.pem").string());
  files.revoked = read_revoked(root.get());
  if (files.revoked) {
    need(X509_STORE_add_crl(store, files.revoked.get()), (folder_ / "ca.crl").string());
    need(X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK), (folder_ / "ca.crl").string());
  }
  verify(store, own.get(), folder_ / "cert.pem");
  files.name = subject_entry(own.get(), NID_commonName);
  files.run = subject_entry(own.get(), NID_organizationName);
  return files;
}

RevocationList Credentials::read_revoked(X509* root) const {
  if (!is_there(folder_ / "ca.crl")) return nullptr;
  auto list = read_revocations(folder_ / "ca.crl");
  const std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>> root_key(
      need(X509_get_pubkey(root), (folder_ / "ca.pem").string()));
  need(X509_CRL_verify(list.get(), root_key.get()),
       (folder_ / "ca.crl").string() + " is not signed by this run's authority");
  return list;
}

Credentials::Stamps Credentials::stamps() const {
  Stamps stamps;
  for (std::size_t i = 0; i < stamps.size(); ++i) {
    std::error_code missing;
    const auto file = folder_ / file_names[i];
    const auto time = std::filesystem::last_write_time(file, missing);
    if (!missing) stamps[i] = {time, std::filesystem::file_size(file, missing)};
  }
  return stamps;
}

std::optional<std::string> Credentials::refresh() {
  const auto stamps = this->stamps();
  if (stamps == stamps_) {
    problem_.clear();
    return std::nullopt;
  }
  std::string problem;
  try {
    now_ = read();
    stamps_ = stamps;
  } catch (const std::exception& error) {  // the old ones stay in use
    problem = std::string("keeps its old certificates: ") + error.what();
    take_up_revoked();
  }
  if (problem.empty()) {
    problem_.clear();
    return "reloaded the certificates in " + folder_.string();
  }
  if (problem == problem_) return std::nullopt;
  problem_ = problem;
  return problem;
}

/// Loads the revocation list even if this process's own certificate has expired, since open connections
/// outlive that.
void Credentials::take_up_revoked() {
  try {
    if (auto list = read_revoked(read_certificate(folder_ / "ca.pem").get())) now_.revoked = std::move(list);
  } catch (const std::exception&) {  // the reason has been reported
  }
}

bool Credentials::revoked(const std::string& serial) const {
  if (!now_.revoked) return false;
  BIGNUM* number = nullptr;
  need(BN_hex2bn(&number, serial.c_str()), "a serial number");
  const Number owned(number);
  const Serial asn1(need(BN_to_ASN1_INTEGER(number, nullptr), "a serial number"));
  X509_REVOKED* entry = nullptr;
  return X509_CRL_get0_by_serial(now_.revoked.get(), &entry, asn1.get()) == 1;
}

}  // namespace isthmus::outer_sync::tls

namespace isthmus::outer_sync {

std::shared_ptr<tls::Credentials> credentials_of(const NetworkConfig& network) {
  return network.certs.empty() ? nullptr : std::make_shared<tls::Credentials>(network.certs);
}

}  // namespace isthmus::outer_sync
