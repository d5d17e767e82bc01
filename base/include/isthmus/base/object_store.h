#pragma once
// An object store: named bytes in an S3-compatible bucket, or in a folder that machines share. Checkpoints
// and round logs are copied to it. A store may be used from several threads; every call blocks. Failures are
// Error(network) if a later try may succeed, Error(config) if the store refuses, and Error(data) for a file
// or folder on this machine; the message names the object.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/archive.h"

namespace isthmus {

struct ObjectStoreOptions {
  std::string url;               ///< s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, or a folder
  std::string endpoint = {};     ///< http(s)://HOST[:PORT]; empty: the one of the scheme
  std::string region = {};       ///< empty: us-east-1, or auto for gs://
  std::string credentials = {};  ///< file in the format of ~/.aws/credentials; empty: that file
  std::string ca = {};           ///< file with trusted certificates; empty: the system's
  std::uint64_t rate = 0;        ///< max bytes per second that a call sends; 0: no limit
};

struct ObjectEntry {
  std::string key;  ///< below the store's prefix
  std::uint64_t size = 0;
  friend bool operator==(const ObjectEntry&, const ObjectEntry&) = default;
};

class ObjectStore {
 public:
  /// Asked between parts of a file: whether to give up.
  using Stopped = std::function<bool()>;

  virtual ~ObjectStore() = default;
  /// Stores an object, whole or not at all; replaces an earlier one of that key.
  virtual void put(const std::string& key, std::span<const std::byte> bytes) = 0;
  /// The same for a file. Returns false if `stopped` gave up.
  [[nodiscard]] virtual bool put_file(const std::string& key, const std::filesystem::path& file,
                                      const Stopped& stopped) = 0;
  /// Up to `most` bytes from `offset` on; nullopt if there is no such object.
  [[nodiscard]] virtual std::optional<Bytes> get(const std::string& key, std::uint64_t offset,
                                                 std::uint64_t most) = 0;
  /// All objects with keys that begin with `prefix`, by ascending key.
  [[nodiscard]] virtual std::vector<ObjectEntry> list(const std::string& prefix) = 0;
  /// An object that does not exist is removed already.
  virtual void remove(const std::string& key) = 0;
  /// Ends calls under way, from any thread, and makes later ones fail with Error(network).
  virtual void give_up() {}
  /// The object's full name for messages.
  [[nodiscard]] virtual std::string name(const std::string& key) const = 0;

  /// Fetches an object into a file, which appears complete or not at all. Returns false if `stopped` gave up.
  /// Throws Error(data) if the object is missing or its size changes meanwhile.
  [[nodiscard]] bool get_file(const ObjectEntry& object, const std::filesystem::path& file,
                              const Stopped& stopped);
};

/// Whether the text is the URL of a bucket, and not a folder.
[[nodiscard]] bool is_bucket_url(const std::string& text);
/// Throws Error(config) naming what is wrong with the options. Reads no file and opens no connection.
void check_object_store(const ObjectStoreOptions& options);
/// Reads the credentials, but opens no connection. Throws Error(config) as check_object_store does, and for
/// credentials that cannot be read.
[[nodiscard]] std::unique_ptr<ObjectStore> open_object_store(const ObjectStoreOptions& options);

}  // namespace isthmus
