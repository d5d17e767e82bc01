#include "objects/s3_signature.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cctype>
#include <cstdint>
#include <vector>

#include "isthmus/base/hash.h"

namespace isthmus {
namespace {

constexpr auto algorithm = "AWS4-HMAC-SHA256";
constexpr auto service = "s3";
constexpr std::size_t date_digits = 8;

using Mac = std::array<std::uint8_t, 32>;

Mac mac_of(std::span<const std::uint8_t> key, std::string_view text) {
  Mac out{};
  unsigned size = out.size();
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const std::uint8_t*>(text.data()), text.size(), out.data(), &size);
  return out;
}

std::string hash_hex(std::string_view text) { return Hasher().update(text).finish().hex(); }

bool unreserved(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_' || c == '~';
}

}  // namespace

std::string s3_encoded(std::string_view text, bool keep_slash) {
  std::string out;
  for (const char c : text) {
    if (unreserved(c) || (keep_slash && c == '/'))
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

std::string s3_query(const std::map<std::string, std::string>& query) {
  std::string out;
  for (const auto& [name, value] : query)
    out += fmt::format("{}{}={}", out.empty() ? "" : "&", s3_encoded(name, false), s3_encoded(value, false));
  return out;
}

std::string s3_authorization(const S3Request& request, const S3Credentials& credentials,
                             const std::string& region, const std::string& time) {
  std::string headers, names;
  for (const auto& [name, value] : request.headers) {
    headers += fmt::format("{}:{}\n", name, value);
    names += (names.empty() ? "" : ";") + name;
  }
  const auto canonical = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.path,
                                     s3_query(request.query), headers, names, request.body_sha256);
  const auto date = time.substr(0, date_digits);
  const auto scope = fmt::format("{}/{}/{}/aws4_request", date, region, service);
  const auto text = fmt::format("{}\n{}\n{}\n{}", algorithm, time, scope, hash_hex(canonical));
  const auto secret = "AWS4" + credentials.secret;
  auto key = mac_of({reinterpret_cast<const std::uint8_t*>(secret.data()), secret.size()}, date);
  for (const std::string_view part :
       {std::string_view(region), std::string_view(service), std::string_view("aws4_request")})
    key = mac_of(key, part);
  Digest signature;
  signature.bytes = mac_of(key, text);
  return fmt::format("{} Credential={}/{},SignedHeaders={},Signature={}", algorithm, credentials.key_id,
                     scope, names, signature.hex());
}

}  // namespace isthmus
