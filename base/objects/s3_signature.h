#pragma once
// Signs requests to S3: AWS Signature Version 4 in headers, and the pieces that it needs. Pure.

#include <map>
#include <span>
#include <string>
#include <string_view>

namespace isthmus {

struct S3Credentials {
  std::string key_id, secret;
  std::string token = {};  ///< of temporary credentials; may be empty
  friend bool operator==(const S3Credentials&, const S3Credentials&) = default;
};

struct S3Request {
  std::string method;                          ///< GET, PUT, POST, DELETE
  std::string path;                            ///< encoded, from the first slash on
  std::map<std::string, std::string> query;    ///< not encoded
  std::map<std::string, std::string> headers;  ///< to sign, with lower-case names; host is one of them
  std::string body_sha256;                     ///< in hex
};

/// Percent-encodes everything but unreserved characters; with `keep_slash` also not '/'.
[[nodiscard]] std::string s3_encoded(std::string_view text, bool keep_slash);
/// The query string, encoded and in the order in which it is signed; without '?'.
[[nodiscard]] std::string s3_query(const std::map<std::string, std::string>& query);
/// The value of the Authorization header. `time`: YYYYMMDDThhmmssZ, as in the header x-amz-date.
[[nodiscard]] std::string s3_authorization(const S3Request& request, const S3Credentials& credentials,
                                           const std::string& region, const std::string& time);

}  // namespace isthmus
