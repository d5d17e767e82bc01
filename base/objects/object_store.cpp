#include "isthmus/base/object_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/text.h"
#include "isthmus/base/text_file.h"
#include "objects/folder_store.h"
#include "objects/s3_store.h"

namespace isthmus {
namespace {

constexpr std::uint64_t fetched_piece = std::uint64_t{16} << 20;

struct Scheme {
  std::string_view begin;
  std::string_view region;  ///< default
};
constexpr std::array schemes = {Scheme{"s3://", "us-east-1"}, Scheme{"gs://", "auto"}};

const Scheme* scheme_of(std::string_view url) {
  const auto* found =
      std::ranges::find_if(schemes, [&](const auto& scheme) { return url.starts_with(scheme.begin); });
  return found == schemes.end() ? nullptr : found;
}

bool is_bucket_name(std::string_view name) {
  constexpr std::size_t shortest = 3, longest = 63;
  return name.size() >= shortest && name.size() <= longest && std::ranges::all_of(name, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
         });
}

void check_endpoint(const std::string& endpoint) {
  if (endpoint.empty()) return;
  const auto begin = endpoint.find("://");
  const bool http = endpoint.starts_with("http://") || endpoint.starts_with("https://");
  const auto host = http ? std::string_view(endpoint).substr(begin + 3) : std::string_view();
  const bool plain =
      std::ranges::all_of(host, [](char c) { return c > ' ' && c < '\x7f' && c != '/' && c != '@'; });
  if (!http || host.empty() || !plain)
    config_error(fmt::format("object_store.endpoint is '{}'; expected http(s)://HOST[:PORT]", endpoint));
}

S3Place place_of(const ObjectStoreOptions& options) {
  const auto* scheme = scheme_of(options.url);
  const auto rest = std::string_view(options.url).substr(scheme->begin.size());
  const auto slash = rest.find('/');
  const std::string bucket(rest.substr(0, slash));
  if (!is_bucket_name(bucket))
    config_error(fmt::format(
        "object_store.url is '{}'; expected s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, with a bucket's "
        "name of 3 to 63 characters a-z, 0-9, '-', '.' and '_'",
        options.url));
  std::string prefix(slash == std::string_view::npos ? "" : trimmed(rest.substr(slash), "/"));
  if (!prefix.empty()) prefix += '/';
  check_endpoint(options.endpoint);
  S3Place place{.endpoint = options.endpoint,
                .path = fmt::format("/{}/", bucket),
                .prefix = prefix,
                .shown = fmt::format("{}{}/{}", scheme->begin, bucket, prefix),
                .region = options.region.empty() ? std::string(scheme->region) : options.region};
  if (!place.endpoint.empty()) return place;
  if (scheme->begin == "gs://") {
    place.endpoint = "https://storage.googleapis.com";
  } else if (bucket.find('.') != std::string::npos) {  // no certificate fits BUCKET.s3.REGION
    place.endpoint = fmt::format("https://s3.{}.amazonaws.com", place.region);
  } else {
    place.endpoint = fmt::format("https://{}.s3.{}.amazonaws.com", bucket, place.region);
    place.path = "/";
  }
  return place;
}

std::filesystem::path credentials_file(const ObjectStoreOptions& options) {
  if (!options.credentials.empty() && !options.credentials.starts_with("~/")) return options.credentials;
  const char* home = std::getenv("HOME");  // NOLINT(concurrency-mt-unsafe): nothing here changes it
  const std::string relative =
      options.credentials.empty() ? ".aws/credentials" : options.credentials.substr(2);
  return std::filesystem::path(home != nullptr ? home : "/") / relative;
}

/// The section [default], or the only section.
S3Credentials read_credentials(const std::filesystem::path& file) {
  std::map<std::string, std::string, std::less<>> values;
  std::string section = "default";
  const auto text = read_text(file, std::size_t{1} << 20);
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    const auto line = trimmed(std::string_view(text).substr(begin, end - begin), " \t\r");
    begin = end + 1;
    const auto equals = line.find('=');
    if (line.starts_with('[')) {
      section = std::string(trimmed(line, "[] \t"));
    } else if (section == "default" && !line.starts_with('#') && equals != std::string_view::npos) {
      values[std::string(trimmed(line.substr(0, equals)))] = std::string(trimmed(line.substr(equals + 1)));
    }
  }
  S3Credentials found{values["aws_access_key_id"], values["aws_secret_access_key"],
                      values["aws_session_token"]};
  if (found.key_id.empty() || found.secret.empty())
    config_error(fmt::format("{} has no aws_access_key_id and aws_secret_access_key in its section [default]",
                             file.string()));
  return found;
}

}  // namespace

bool is_bucket_url(const std::string& text) { return scheme_of(text) != nullptr; }

void check_object_store(const ObjectStoreOptions& options) {
  if (is_bucket_url(options.url)) {
    [[maybe_unused]] const auto place = place_of(options);
  } else if (options.url.find("://") != std::string::npos) {
    config_error(
        fmt::format("object_store.url is '{}'; expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or a folder",
                    options.url));
  }
}

std::unique_ptr<ObjectStore> open_object_store(const ObjectStoreOptions& options) {
  check_object_store(options);
  if (!is_bucket_url(options.url)) return std::make_unique<FolderStore>(options.url);
  const auto file = credentials_file(options);
  try {
    return std::make_unique<S3Store>(
        place_of(options), [file] { return read_credentials(file); }, options.ca, options.rate);
  } catch (const Error& error) {
    config_error(
        fmt::format("no credentials for {}: {}; set object_store.credentials to a file in the format of "
                    "~/.aws/credentials",
                    options.url, error.what()));
  }
}

bool ObjectStore::get_file(const ObjectEntry& object, const std::filesystem::path& file,
                           const Stopped& stopped) {
  struct GaveUp {};
  try {
    replace_file(file, [&](const File& out) {
      for (std::uint64_t at = 0; at < object.size;) {
        if (stopped()) throw GaveUp();
        const auto piece = get(object.key, at, std::min(fetched_piece, object.size - at));
        if (!piece || piece->empty())
          data_error(fmt::format("{} was removed or became shorter while it was fetched", name(object.key)));
        out.write(*piece);
        at += piece->size();
      }
    });
  } catch (const GaveUp&) {
    return false;
  }
  return true;
}

}  // namespace isthmus
