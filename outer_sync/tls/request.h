#pragma once
// Signing requests, by which a machine gets a certificate while its private key stays there.

#include <filesystem>
#include <string>
#include <string_view>

#include "tls/openssl.h"

namespace isthmus::outer_sync::tls {

/// PKCS#10 in PEM for this key, signed with it.
[[nodiscard]] std::string new_request(EVP_PKEY* key, const std::string& run, const std::string& name);

/// The public key of such a request; only P-256 is accepted. Throws Error(network) if invalid, since requests
/// come from strangers.
[[nodiscard]] Key key_of_request(std::string_view request);

}  // namespace isthmus::outer_sync::tls
