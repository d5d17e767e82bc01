#include "isthmus/outer_sync/tls/authority.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <set>
#include <span>
#include <sstream>
#include <vector>

#include "isthmus/base/file.h"
#include "isthmus/base/text_file.h"
#include "isthmus/outer_sync/tls/join_token.h"
#include "tls/openssl.h"
#include "tls/request.h"

namespace isthmus::outer_sync::tls {

namespace {

namespace fs = std::filesystem;

constexpr int root_days = 3650;
constexpr int serial_bits = 127;  // random, so that no counter is needed
constexpr long seconds_a_day = 86400;

void add_extension(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = need(X509V3_EXT_conf_nid(nullptr, &context, nid, value), "an extension");
  const int added = X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
  need(added, "an extension");
}

/// A certificate for this name and run, without extensions and unsigned. `role` is empty for a root.
Certificate blank(EVP_PKEY* key, const std::string& run, const std::string& name, int days,
                  const std::string& role = {}) {
  Certificate certificate(need(X509_new(), "a certificate"));
  need(X509_set_version(certificate.get(), X509_VERSION_3), "a certificate");
  const Number serial(need(BN_new(), "a serial number"));
  need(BN_rand(serial.get(), serial_bits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY), "a serial number");
  need(BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate.get())), "a serial number");
  // Clocks of sites differ, but a certificate must be valid everywhere at once.
  need(X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -seconds_a_day), "a time");
  need(X509_gmtime_adj(X509_getm_notAfter(certificate.get()), days * seconds_a_day), "a time");
  auto* subject = X509_get_subject_name(certificate.get());
  for (const auto& [field, text] : {std::pair("O", &run), std::pair("OU", &role), std::pair("CN", &name)}) {
    if (text->empty()) continue;
    need(X509_NAME_add_entry_by_txt(subject, field, MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(text->c_str()), -1, -1, 0),
         "a name");
  }
  need(X509_set_pubkey(certificate.get(), key), "a certificate");
  return certificate;
}

/// Locks an authority's folder, so that only one process writes its files: a coordinator may enrol a newcomer
/// while a user works on them by hand. Other accounts cannot open the lock file, so they cannot hold it.
class FolderAlone {
 public:
  explicit FolderAlone(const fs::path& folder)
      : descriptor_(::open((folder / "lock").c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600)) {
    const auto file = (folder / "lock").string();
    if (descriptor_ < 0) throw Error(ErrorKind::data, "cannot open " + file + ": " + std::strerror(errno));
    if (lock_within(descriptor_, longest_wait)) return;
    const std::string reason = errno == EWOULDBLOCK
                                   ? "another process has held it for 10 s; find it with: lsof " + file
                                   : std::strerror(errno);
    ::close(descriptor_);
    throw Error(ErrorKind::data, "cannot lock " + file + ": " + reason);
  }
  ~FolderAlone() { ::close(descriptor_); }
  FolderAlone(const FolderAlone&) = delete;
  FolderAlone& operator=(const FolderAlone&) = delete;

 private:
  static constexpr std::chrono::milliseconds longest_wait{10'000};
  int descriptor_;
};

struct Issued {
  std::string serial, name;
  std::int64_t ends = never;  ///< seconds since 1970
  static constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();
};

std::vector<Issued> read_issued(const fs::path& file) {
  std::vector<Issued> issued;
  if (!fs::exists(file)) return issued;
  each_line(file, [&](std::string_view line) {
    std::istringstream in{std::string(line)};
    Issued one;
    if (!(in >> one.serial >> one.name)) return;
    if (!(in >> one.ends)) one.ends = Issued::never;  // from a build that did not write it
    issued.push_back(std::move(one));
  });
  return issued;
}

void write_issued(const fs::path& file, const std::vector<Issued>& issued) {
  std::string text;
  for (const auto& one : issued) {
    text += one.serial + " " + one.name;
    if (one.ends != Issued::never) text += " " + std::to_string(one.ends);
    text += "\n";
  }
  replace_file(file, text);
}

/// Removes certificates that expired so long ago that every site's clock agrees, and returns their serials.
std::set<std::string> take_expired(std::vector<Issued>& issued) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto latest =
      std::chrono::duration_cast<std::chrono::seconds>(now - std::chrono::hours(24 * 7)).count();
  std::set<std::string> serials;
  for (const auto& one : issued) {
    if (one.ends < latest) serials.insert(one.serial);
  }
  std::erase_if(issued, [&](const Issued& one) { return one.ends < latest; });
  return serials;
}

/// A new list with the entries of the old one, except these serials.
RevocationList revocations(const fs::path& file, const X509* root, const std::set<std::string>& without) {
  RevocationList list(need(X509_CRL_new(), "a revocation list"));
  need(X509_CRL_set_version(list.get(), 1), "a revocation list");
  need(X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(root)), "a revocation list");
  if (!fs::exists(file)) return list;
  const auto before = read_revocations(file);
  auto* revoked = X509_CRL_get_REVOKED(before.get());
  for (int i = 0; i < sk_X509_REVOKED_num(revoked); ++i) {
    const auto* entry = sk_X509_REVOKED_value(revoked, i);
    if (without.contains(text_of(X509_REVOKED_get0_serialNumber(entry)))) continue;
    need(X509_CRL_add0_revoked(list.get(), need(X509_REVOKED_dup(entry), "a revocation")), "a revocation");
  }
  return list;
}

/// Reads all at once, because OpenSSL sorts the list for each search after an addition.
std::set<std::string> serials_in(X509_CRL* list) {
  std::set<std::string> serials;
  auto* revoked = X509_CRL_get_REVOKED(list);
  for (int i = 0; i < sk_X509_REVOKED_num(revoked); ++i)
    serials.insert(text_of(X509_REVOKED_get0_serialNumber(sk_X509_REVOKED_value(revoked, i))));
  return serials;
}

void revoke_one(X509_CRL* list, const std::string& digits) {
  BIGNUM* number = nullptr;
  need(BN_hex2bn(&number, digits.c_str()), "serial number " + digits);
  const Number owned(number);
  const Serial serial(need(BN_to_ASN1_INTEGER(number, nullptr), "a serial number"));
  X509_REVOKED* entry = need(X509_REVOKED_new(), "a revocation");
  const Moment now(need(X509_gmtime_adj(nullptr, 0), "a time"));
  const bool made = X509_REVOKED_set_serialNumber(entry, serial.get()) > 0 &&
                    X509_REVOKED_set_revocationDate(entry, now.get()) > 0;
  if (!made || X509_CRL_add0_revoked(list, entry) <= 0) {
    X509_REVOKED_free(entry);
    throw Error(ErrorKind::data, "cannot revoke " + digits + ": " + openssl_error());
  }
}

}  // namespace

Authority Authority::create(const fs::path& folder, const std::string& run) {
  check_word("the run", run);
  for (const auto* name : {"ca.pem", "ca.key"}) {
    if (fs::exists(folder / name))
      throw Error(ErrorKind::config, (folder / name).string() +
                                         " exists already; to start over, move the folder away: the "
                                         "certificates that it has issued become invalid");
  }
  make_private_folder(folder);
  const auto key = new_key();
  const auto root = blank(key.get(), run, "certificate authority", root_days);
  need(X509_set_issuer_name(root.get(), X509_get_subject_name(root.get())), "a root");
  add_extension(root.get(), root.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  add_extension(root.get(), root.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  add_extension(root.get(), root.get(), NID_subject_key_identifier, "hash");
  need(X509_sign(root.get(), key.get(), EVP_sha256()), "cannot sign");
  // A file that must not exist: of two calls at once, one fails, and never do the key of one and the
  // certificate of the other end up together.
  const File key_file(folder / "ca.key", File::Mode::secret);
  const auto text = pem_of(key.get());
  key_file.write(std::as_bytes(std::span(text)));
  key_file.sync();
  replace_file(folder / "ca.pem", pem_of(root.get()));
  return {folder, run};
}

Authority Authority::open(const fs::path& folder) {
  const auto root = read_certificate(folder / "ca.pem");
  return {folder, subject_entry(root.get(), NID_organizationName)};
}

std::string Authority::certify(EVP_PKEY* key, const std::string& name, int days, Role role) const {
  check_word("the name", name);
  const auto root = read_certificate(folder_ / "ca.pem");
  const auto root_key = read_key(folder_ / "ca.key");
  const auto certificate = blank(key, run_, name, days, to_string(role));
  need(X509_set_issuer_name(certificate.get(), X509_get_subject_name(root.get())), "a certificate");
  add_extension(certificate.get(), root.get(), NID_basic_constraints, "critical,CA:FALSE");
  add_extension(certificate.get(), root.get(), NID_key_usage, "critical,digitalSignature");
  add_extension(certificate.get(), root.get(), NID_ext_key_usage, "serverAuth,clientAuth");
  add_extension(certificate.get(), root.get(), NID_authority_key_identifier, "keyid:always");
  need(X509_sign(certificate.get(), root_key.get(), EVP_sha256()), "cannot sign");

  // Recorded before it is handed out: a certificate that is not on record could not be revoked.
  tm end{};
  need(ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end), "a time");
  auto issued = read_issued(folder_ / "issued");
  issued.push_back({text_of(X509_get0_serialNumber(certificate.get())), name, timegm(&end)});
  write_issued(folder_ / "issued", issued);
  return pem_of(certificate.get());
}

fs::path Authority::issue(const std::string& name, int days, Role role) const {
  const auto key = new_key();
  const FolderAlone alone(folder_);
  const auto certificate = certify(key.get(), name, days, role);
  auto own = folder_ / name;
  make_private_folder(own);
  replace_file(own / "ca.pem", read_text(folder_ / "ca.pem"));
  if (fs::exists(folder_ / "ca.crl")) replace_file(own / "ca.crl", read_text(folder_ / "ca.crl"));
  // Certificate and key in one file, so that a running process never loads one without the other.
  replace_file(own / "cert.pem", certificate + pem_of(key.get()), File::Mode::secret);
  return own;
}

Secret Authority::invite(const std::string& name, Role role, Invitations::Time now,
                         std::chrono::seconds lifetime, int days) const {
  const FolderAlone alone(folder_);
  return Invitations(folder_).add(name, role, now, lifetime, days);
}

Invitations::Verdict Authority::enrol(const Secret& secret, const std::string& request,
                                      Invitations::Time now) const {
  const auto key = key_of_request(request);
  // Held until the answer is on disk, so that a name revoked meanwhile gets no certificate afterwards.
  const FolderAlone alone(folder_);
  return Invitations(folder_).redeem(
      secret, fingerprint_of(key.get()), now,
      [&](const std::string& name, Role role, int days) { return certify(key.get(), name, days, role); });
}

Digest Authority::fingerprint() const { return fingerprint_of(read_certificate(folder_ / "ca.pem").get()); }

void Authority::revoke(const std::string& name) const {
  const auto root = read_certificate(folder_ / "ca.pem");
  const auto root_key = read_key(folder_ / "ca.key");
  const FolderAlone alone(folder_);
  // First, so that no invitation can be used even if a later step fails.
  bool found = Invitations(folder_).withdraw(name) > 0;
  auto issued = read_issued(folder_ / "issued");
  const auto list = revocations(folder_ / "ca.crl", root.get(), take_expired(issued));
  const auto revoked = serials_in(list.get());
  for (const auto& one : issued) {
    if (one.name != name) continue;
    if (!revoked.contains(one.serial)) revoke_one(list.get(), one.serial);
    found = true;
  }
  if (!found)
    throw Error(ErrorKind::config, "there is nothing to revoke: no certificate of '" + name + "' is in " +
                                       (folder_ / "issued").string() + " and no invitation in " +
                                       (folder_ / "invitations").string());
  const Moment now(need(X509_gmtime_adj(nullptr, -seconds_a_day), "a time"));
  const Moment end(need(X509_gmtime_adj(nullptr, root_days * seconds_a_day), "a time"));
  need(X509_CRL_set1_lastUpdate(list.get(), now.get()), "a revocation list");
  need(X509_CRL_set1_nextUpdate(list.get(), end.get()), "a revocation list");
  need(X509_CRL_sort(list.get()), "a revocation list");
  need(X509_CRL_sign(list.get(), root_key.get(), EVP_sha256()), "cannot sign");
  const auto text = pem_of(list.get());
  if (text.size() > max_revoked_text)
    throw Error(ErrorKind::data,
                (folder_ / "ca.crl").string() + " would have " + std::to_string(text.size()) +
                    " bytes, but processes read at most " + std::to_string(max_revoked_text) +
                    "; it is left unchanged. Create a new authority (isthmus certs init) and issue "
                    "new certificates to all processes that remain");
  replace_file(folder_ / "ca.crl", text);
  write_issued(folder_ / "issued", issued);
  for (const auto& one : issued) {
    if (fs::exists(folder_ / one.name)) replace_file(folder_ / one.name / "ca.crl", text);
  }
}

}  // namespace isthmus::outer_sync::tls
