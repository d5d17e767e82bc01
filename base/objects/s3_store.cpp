#include "objects/s3_store.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/hash.h"
#include "isthmus/base/time.h"
#include "objects/s3_answers.h"

namespace isthmus {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::uint64_t min_part = std::uint64_t{16} << 20;
constexpr std::uint64_t max_parts = 10'000;               // S3's limit
constexpr std::size_t max_answer = std::size_t{8} << 20;  // a page of 1,000 keys has at most 4 MB
constexpr std::size_t max_objects = 1'000'000;
constexpr std::size_t paced_piece = std::size_t{64} << 10;
constexpr std::array pauses = {milliseconds(300), milliseconds(1'000), milliseconds(3'000)};
constexpr std::chrono::seconds connect_patience{10}, answer_patience{120};
constexpr int http_ok = 200, http_redirect = 300, http_bad = 400, http_unauthorized = 401,
              http_forbidden = 403, http_not_found = 404, http_timeout = 408, http_too_many = 429,
              http_server = 500;

std::string body_hash(std::span<const std::byte> bytes) { return Hasher().update(bytes).finish().hex(); }

std::string now_text() {
  return fmt::format("{:%Y%m%dT%H%M%SZ}", fmt::gmtime(std::chrono::system_clock::now()));
}

/// The first bundle of certificates that this system has: a program that brings its own OpenSSL may look
/// for them in a folder of another distribution.
std::string system_certificates() {
  for (const auto* file :
       {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"})
    if (std::filesystem::exists(file)) return file;
  return {};
}

std::string host_of(const std::string& endpoint) { return endpoint.substr(endpoint.find("://") + 3); }

bool worth_another_try(int status) {
  return status == http_timeout || status == http_too_many || status >= http_server;
}

/// Other credentials may be accepted. Amazon answers 400 (ExpiredToken) if a temporary key has expired.
bool may_be_of_credentials(int status) {
  return status == http_bad || status == http_unauthorized || status == http_forbidden;
}

std::string problem_of(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection:
    case httplib::Error::ConnectionTimeout:
      return "cannot connect";
    case httplib::Error::Read:
    case httplib::Error::Write:
      return "the connection was lost";
    case httplib::Error::SSLConnection:
      return "the TLS handshake failed";
    case httplib::Error::SSLLoadingCerts:
      return "cannot read the trusted certificates; check object_store.ca";
    case httplib::Error::SSLServerVerification:
      return "its certificate is not trusted; name a file with the right authority in object_store.ca";
    default:
      return httplib::to_string(error);
  }
}

/// Whether another try a moment later may succeed. While a connection is made, the kernel repeats its
/// attempt, so a server that has not answered all that time is not asked again here.
bool may_pass(httplib::Error error, Clock::duration after) {
  switch (error) {
    case httplib::Error::SSLLoadingCerts:
    case httplib::Error::SSLServerVerification:
      return false;
    case httplib::Error::Connection:
    case httplib::Error::ConnectionTimeout:
      return after < connect_patience;
    case httplib::Error::Read:
      return after < answer_patience;
    default:
      return true;
  }
}

std::span<const std::byte> body_of(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

struct S3Store::Call {
  std::string method;
  std::string key;  ///< below the store's prefix; empty for the bucket itself
  std::map<std::string, std::string> query = {};
  std::span<const std::byte> body = {};
  std::string range = {};
  std::size_t most = max_answer;  ///< bytes of the answer
};

/// Why a request has no answer that counts.
struct S3Store::Failure {
  std::string problem = {};
  bool may_pass = true;  ///< whether another try a moment later may succeed
};

struct S3Store::Answer {
  int status = 0;
  std::string etag;
  Bytes body;
  [[nodiscard]] std::string_view text() const {
    return {reinterpret_cast<const char*>(body.data()), body.size()};
  }
};

S3Store::S3Store(S3Place place, std::function<S3Credentials()> read, std::string ca, std::uint64_t rate)
    : place_(std::move(place)),
      read_(std::move(read)),
      credentials_(read_()),
      ca_(ca.empty() ? system_certificates() : std::move(ca)),
      rate_(rate) {}

S3Store::~S3Store() = default;

std::string S3Store::name(const std::string& key) const { return place_.shown + key; }

// ---- requests ----

std::unique_ptr<httplib::Client> S3Store::new_client() const {
  auto client = std::make_unique<httplib::Client>(place_.endpoint);
  client->set_keep_alive(true);
  client->set_url_encode(false);  // the path is signed as it is sent
  client->set_decompress(false);
  client->set_connection_timeout(connect_patience);
  client->set_read_timeout(answer_patience);
  client->set_write_timeout(answer_patience);
  if (place_.endpoint.starts_with("https://") && !ca_.empty()) client->set_ca_cert_path(ca_);
  return client;
}

std::unique_ptr<httplib::Client> S3Store::take_client() {
  const std::scoped_lock lock(mutex_);
  if (given_up_) throw Error(ErrorKind::network, place_.shown + " is not used any more");
  auto client = idle_.empty() ? new_client() : std::move(idle_.back());
  if (!idle_.empty()) idle_.pop_back();
  busy_.insert(client.get());
  return client;
}

void S3Store::put_back(std::unique_ptr<httplib::Client> client, bool works) {
  const std::scoped_lock lock(mutex_);
  busy_.erase(client.get());
  if (works && !given_up_) idle_.push_back(std::move(client));
}

void S3Store::give_up() {
  const std::scoped_lock lock(mutex_);
  given_up_ = true;
  for (auto* client : busy_) client->stop();
  gave_up_.notify_all();
}

S3Credentials S3Store::credentials() {
  const std::scoped_lock lock(mutex_);
  return credentials_;
}

/// Whether the file has others than those in use, which are then replaced.
bool S3Store::has_new_credentials() {
  try {
    auto now = read_();
    const std::scoped_lock lock(mutex_);
    return std::exchange(credentials_, now) != now;
  } catch (const Error&) {
    return false;  // the server's answer says more
  }
}

/// nullopt with a `failure` if there is no answer that counts.
std::optional<S3Store::Answer> S3Store::try_once(const Call& call, Failure& failure) {
  S3Request signed_request{
      .method = call.method,
      .path = place_.path + s3_encoded(call.key.empty() ? "" : place_.prefix + call.key, true),
      .query = call.query,
      .headers = {{"host", host_of(place_.endpoint)}, {"x-amz-date", now_text()}},
      .body_sha256 = body_hash(call.body)};
  auto& headers = signed_request.headers;
  headers["x-amz-content-sha256"] = signed_request.body_sha256;
  if (!call.range.empty()) headers["range"] = call.range;
  const auto own = credentials();
  if (!own.token.empty()) headers["x-amz-security-token"] = own.token;

  httplib::Request request;
  request.method = call.method;
  const auto query = s3_query(call.query);
  request.path = signed_request.path + (query.empty() ? "" : "?" + query);
  for (const auto& [name, value] : headers) request.headers.emplace(name, value);
  request.headers.emplace("authorization",
                          s3_authorization(signed_request, own, place_.region, headers["x-amz-date"]));
  if (call.method == "PUT" || call.method == "POST") {
    request.content_length_ = call.body.size();
    request.headers.emplace("content-type", "application/octet-stream");
    const auto begin = Clock::now();
    request.content_provider_ = [&](std::size_t offset, std::size_t, httplib::DataSink& sink) {
      const auto piece = call.body.subspan(offset, std::min(paced_piece, call.body.size() - offset));
      if (rate_ > 0)
        std::this_thread::sleep_until(
            begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                        static_cast<double>(offset) / static_cast<double>(rate_))));
      return sink.write(reinterpret_cast<const char*>(piece.data()), piece.size());
    };
  }
  Answer answer;
  bool too_long = false;
  request.content_receiver = [&](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
    too_long = size > std::max(call.most, max_answer) - answer.body.size();
    if (too_long) return false;
    const auto* begin = reinterpret_cast<const std::byte*>(data);
    answer.body.insert(answer.body.end(), begin, begin + size);
    return true;
  };

  auto client = take_client();
  const auto begin = Clock::now();
  httplib::Response response;
  auto error = httplib::Error::Success;
  const bool answered = client->send(request, response, error);
  put_back(std::move(client), answered && !too_long);
  if (too_long) {
    failure = {.problem = "its answer is longer than it may be"};
    return std::nullopt;
  }
  if (!answered) {
    failure = {.problem = problem_of(error), .may_pass = may_pass(error, Clock::now() - begin)};
    return std::nullopt;
  }
  answer.status = response.status;
  answer.etag = response.get_header_value("ETag");
  if (!worth_another_try(answer.status)) return answer;
  failure = {.problem = fmt::format("status {} {}", answer.status, s3_reason(answer.text()))};
  return std::nullopt;
}

S3Store::Answer S3Store::send(const Call& call) {
  Failure failure;
  for (std::size_t attempt = 0; attempt <= pauses.size() && failure.may_pass; ++attempt) {
    if (attempt > 0) {
      std::unique_lock lock(mutex_);
      gave_up_.wait_for(lock, pauses.at(attempt - 1), [&] { return given_up_; });
    }
    auto answer = try_once(call, failure);
    if (answer && may_be_of_credentials(answer->status) && has_new_credentials())
      answer = try_once(call, failure);
    if (answer) return std::move(*answer);
  }
  throw Error(ErrorKind::network, fmt::format("{} {} failed at {}: {}", call.method, name(call.key),
                                              place_.endpoint, failure.problem));
}

/// The same, but an answer other than success or "not found" is an error.
S3Store::Answer S3Store::accepted(const Call& call) {
  auto answer = send(call);
  if (answer.status < http_redirect || answer.status == http_not_found) return answer;
  const auto reason = s3_reason(answer.text());
  config_error(fmt::format(
      "{} refuses {} {} with status {}{}{}; check the bucket, object_store.endpoint, region and "
      "credentials",
      place_.endpoint, call.method, name(call.key), answer.status, reason.empty() ? "" : ": ", reason));
}

// ---- objects ----

void S3Store::put(const std::string& key, std::span<const std::byte> bytes) {
  if (accepted({.method = "PUT", .key = key, .body = bytes}).status == http_not_found)
    config_error(fmt::format("{} has no bucket for {}; create it first", place_.endpoint, name(key)));
}

/// An upload in parts. If it were neither completed nor given up, its parts would stay, and cost money.
class S3Store::Upload {
 public:
  Upload(S3Store& store, std::string key) : store_(store), key_(std::move(key)) {
    const auto answer = store_.accepted({.method = "POST", .key = key_, .query = {{"uploads", ""}}});
    id_ = xml_text(answer.text(), "UploadId").value_or("");
    if (id_.empty())
      config_error(fmt::format(
          "{} began no upload of {}: status {}; expected an S3-compatible server and an existing bucket",
          store_.place_.endpoint, store_.name(key_), answer.status));
  }
  ~Upload() {
    if (done_) return;
    try {
      [[maybe_unused]] const auto answer =
          store_.send({.method = "DELETE", .key = key_, .query = {{"uploadId", id_}}});
    } catch (const Error&) {
      // The caller reports why the upload failed. A rule of the bucket may remove the parts.
    }
  }
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  void part(std::span<const std::byte> bytes) {
    const auto number = tags_.size() + 1;
    auto answer = store_.accepted({.method = "PUT",
                                   .key = key_,
                                   .query = {{"partNumber", std::to_string(number)}, {"uploadId", id_}},
                                   .body = bytes});
    if (answer.status == http_not_found || answer.etag.empty())
      throw Error(ErrorKind::network,
                  fmt::format("{} has lost the upload of {}", store_.place_.endpoint, store_.name(key_)));
    tags_.push_back(std::move(answer.etag));
  }
  void complete() {
    std::string xml = "<CompleteMultipartUpload>";
    for (std::size_t i = 0; i < tags_.size(); ++i)
      xml += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1, tags_[i]);
    xml += "</CompleteMultipartUpload>";
    const auto answer =
        store_.accepted({.method = "POST", .key = key_, .query = {{"uploadId", id_}}, .body = body_of(xml)});
    // S3 may report a failure with status 200, after it has begun to answer.
    if (answer.status != http_ok || !xml_text(answer.text(), "ETag"))
      throw Error(ErrorKind::network,
                  fmt::format("{} did not complete the upload of {}: {}", store_.place_.endpoint,
                              store_.name(key_), s3_reason(answer.text())));
    done_ = true;
  }

 private:
  S3Store& store_;
  std::string key_, id_;
  std::vector<std::string> tags_;
  bool done_ = false;
};

bool S3Store::put_file(const std::string& key, const std::filesystem::path& file, const Stopped& stopped) {
  const File in(file, File::Mode::read);
  auto left = in.size();
  const auto part_bytes = std::max(min_part, left / (max_parts - 1));
  Bytes memory(std::min(left, part_bytes));
  const auto next_part = [&] {
    const auto part = std::span(memory).first(std::min(left, part_bytes));
    if (!in.read(part)) data_error(file.string() + " became shorter while it was uploaded");
    left -= part.size();
    return part;
  };
  if (left <= part_bytes) {
    if (stopped()) return false;
    put(key, next_part());
    return true;
  }
  Upload upload(*this, key);
  while (left > 0) {
    if (stopped()) return false;
    upload.part(next_part());
  }
  upload.complete();
  return true;
}

std::optional<Bytes> S3Store::get(const std::string& key, std::uint64_t offset, std::uint64_t most) {
  if (most == 0) return Bytes();
  constexpr int beyond_the_end = 416;
  const Call call{.method = "GET",
                  .key = key,
                  .range = fmt::format("bytes={}-{}", offset, offset + most - 1),
                  .most = static_cast<std::size_t>(most)};
  auto answer = send(call);
  if (answer.status == beyond_the_end) return Bytes();
  if (answer.status == http_not_found) return std::nullopt;
  if (answer.status >= http_redirect) answer = accepted(call);  // throws with the reason
  constexpr int partial = 206;
  const bool whole = answer.status != partial;  // a server may ignore the range of a short object
  if (whole && offset > 0)
    answer.body.erase(answer.body.begin(),
                      answer.body.begin() +
                          static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(offset, answer.body.size())));
  if (answer.body.size() > most) answer.body.resize(most);
  return std::move(answer.body);
}

std::vector<ObjectEntry> S3Store::list(const std::string& prefix) {
  std::vector<ObjectEntry> found;
  std::string next;
  do {
    Call call{.method = "GET",
              .key = "",
              .query = {{"list-type", "2"}, {"encoding-type", "url"}, {"prefix", place_.prefix + prefix}}};
    if (!next.empty()) call.query["continuation-token"] = next;
    const auto answer = accepted(call);
    auto page = s3_page(answer.text());
    if (answer.status != http_ok || !page)
      config_error(fmt::format(
          "{} does not list {}: status {} {}; expected an S3-compatible server and an existing bucket",
          place_.endpoint, name(prefix), answer.status, s3_reason(answer.text())));
    for (auto& object : page->objects) {
      if (!object.key.starts_with(place_.prefix + prefix)) continue;
      object.key.erase(0, place_.prefix.size());
      found.push_back(std::move(object));
    }
    if (page->next == next || found.size() > max_objects)
      if (!page->next.empty())
        throw Error(ErrorKind::network,
                    fmt::format("{} lists {} without an end", place_.endpoint, name(prefix)));
    next = std::move(page->next);
  } while (!next.empty());
  std::ranges::sort(found, {}, &ObjectEntry::key);
  return found;
}

void S3Store::remove(const std::string& key) {
  [[maybe_unused]] const auto answer = accepted({.method = "DELETE", .key = key});
}

}  // namespace isthmus
