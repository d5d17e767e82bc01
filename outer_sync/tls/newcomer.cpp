#include "isthmus/outer_sync/tls/newcomer.h"

#include "isthmus/base/file.h"
#include "tls/request.h"

namespace isthmus::outer_sync::tls {

namespace fs = std::filesystem;

EnrolmentRequest NewcomerFolder::request(const JoinToken& token) const {
  make_private_folder(folder_);
  const auto file = folder_ / "key.pem";
  if (!fs::exists(file)) replace_file(file, pem_of(new_key().get()), File::Mode::secret);
  return {.secret = token.secret, .request = new_request(read_key(file).get(), token.run, token.name)};
}

void NewcomerFolder::complete(const JoinToken& token, const EnrolmentAnswer& answer) const {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::network, "rejected the coordinator's answer: " + why);
  };
  const auto key = read_key(folder_ / "key.pem");
  try {
    const auto root = certificate_from(answer.root, "the authority's certificate");
    const auto own = certificate_from(answer.certificate, "the certificate");
    const Key root_key(need(X509_get_pubkey(root.get()), "the authority's certificate"));
    if (fingerprint_of(root.get()) != token.authority) refuse("its authority is not that of the token");
    need(X509_verify(own.get(), root_key.get()), "the certificate is not of that authority");
    need(X509_check_private_key(own.get(), key.get()), "the certificate is for another key");
    if (subject_entry(own.get(), NID_commonName) != token.name ||
        subject_entry(own.get(), NID_organizationName) != token.run)
      refuse("the certificate is not for " + token.name + " of run " + token.run);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::network) throw;
    refuse(error.what());
  }
  replace_file(folder_ / "ca.pem", answer.root);
  if (!answer.revoked.empty()) replace_file(folder_ / "ca.crl", answer.revoked);
  replace_file(folder_ / "cert.pem", answer.certificate + pem_of(key.get()), File::Mode::secret);
  remove_file(folder_ / "key.pem");
}

}  // namespace isthmus::outer_sync::tls
