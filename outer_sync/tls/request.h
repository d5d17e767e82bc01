#pragma once
// Signing requests: how a machine gets a certificate without its private key leaving it.

#include <filesystem>
#include <string>
#include <string_view>

#include "tls/openssl.h"

namespace isthmus::outer_sync::tls {

/// PKCS#10 in PEM for this key, which it proves to have.
[[nodiscard]] std::string new_request(EVP_PKEY* key, const std::string& run, const std::string& name);

/// The public key of such a request, P-256 alone. Throws Error(network) for anything else: it is a
/// stranger's.
[[nodiscard]] Key key_of_request(std::string_view request);

}  // namespace isthmus::outer_sync::tls
