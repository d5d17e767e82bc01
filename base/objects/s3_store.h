#pragma once
// An object store in a bucket of an S3-compatible server, over HTTP or HTTPS. Each call takes an idle
// connection or opens one, so calls from several threads run at once.

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "isthmus/base/object_store.h"
#include "objects/s3_signature.h"

namespace httplib {
class Client;
}

namespace isthmus {

/// Where a bucket is.
struct S3Place {
  std::string endpoint;  ///< http(s)://HOST[:PORT]
  std::string path;      ///< "/BUCKET/" or "/", encoded: before the key
  std::string prefix;    ///< of all keys: empty, or ends in '/'
  std::string shown;     ///< "s3://BUCKET/PREFIX/", for messages
  std::string region;
};

class S3Store final : public ObjectStore {
 public:
  /// `read` reads the credentials, now and whenever the server refuses the present ones: temporary ones end.
  S3Store(S3Place place, std::function<S3Credentials()> read, std::string ca, std::uint64_t rate);
  ~S3Store() override;
  S3Store(const S3Store&) = delete;
  S3Store& operator=(const S3Store&) = delete;
  void put(const std::string& key, std::span<const std::byte> bytes) override;
  bool put_file(const std::string& key, const std::filesystem::path& file, const Stopped& stopped) override;
  std::optional<Bytes> get(const std::string& key, std::uint64_t offset, std::uint64_t most) override;
  std::vector<ObjectEntry> list(const std::string& prefix) override;
  void remove(const std::string& key) override;
  void give_up() override;
  std::string name(const std::string& key) const override;

 private:
  struct Call;
  struct Answer;
  class Upload;
  struct Failure;
  [[nodiscard]] Answer send(const Call& call);
  [[nodiscard]] Answer accepted(const Call& call);
  [[nodiscard]] std::optional<Answer> try_once(const Call& call, Failure& failure);
  [[nodiscard]] std::unique_ptr<httplib::Client> take_client();
  [[nodiscard]] std::unique_ptr<httplib::Client> new_client() const;
  void put_back(std::unique_ptr<httplib::Client> client, bool works);

  [[nodiscard]] S3Credentials credentials();
  [[nodiscard]] bool has_new_credentials();

  S3Place place_;
  std::function<S3Credentials()> read_;
  S3Credentials credentials_;  ///< guarded
  std::string ca_;
  std::uint64_t rate_;
  std::mutex mutex_;
  std::condition_variable gave_up_;
  bool given_up_ = false;
  std::vector<std::unique_ptr<httplib::Client>> idle_;
  std::set<httplib::Client*> busy_;
};

}  // namespace isthmus
