#include "tls/request.h"

#include <openssl/ec.h>

#include <array>
#include <utility>

namespace isthmus::outer_sync::tls {

std::string new_request(EVP_PKEY* key, const std::string& run, const std::string& name) {
  const Request request(need(X509_REQ_new(), "a signing request"));
  auto* subject = X509_REQ_get_subject_name(request.get());
  for (const auto& [field, text] : {std::pair("O", &run), std::pair("CN", &name)}) {
    need(X509_NAME_add_entry_by_txt(subject, field, MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(text->c_str()), -1, -1, 0),
         "a name");
  }
  need(X509_REQ_set_pubkey(request.get(), key), "a signing request");
  need(X509_REQ_sign(request.get(), key, EVP_sha256()), "cannot sign a request");
  return pem_of(request.get());
}

Key key_of_request(std::string_view text) {
  try {
    const auto request = request_from(text, "the request");
    Key key(need(X509_REQ_get_pubkey(request.get()), "the request's key"));
    std::array<char, 32> group{};
    std::size_t size = 0;
    // Checked before any computation with the key, which may be slow for other keys.
    const bool named = EVP_PKEY_is_a(key.get(), "EC") == 1 &&
                       EVP_PKEY_get_group_name(key.get(), group.data(), group.size(), &size) == 1;
    if (!named || std::string_view(group.data(), size) != SN_X9_62_prime256v1)
      throw Error(ErrorKind::data, "the request's key is not a P-256 key");
    need(X509_REQ_verify(request.get(), key.get()), "the request is not signed by its key");
    return key;
  } catch (const Error& error) {
    throw Error(ErrorKind::network, error.what());
  }
}

}  // namespace isthmus::outer_sync::tls
