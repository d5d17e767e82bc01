#pragma once
// An object store in a folder, for example of a network file system: a key is a file's path in it.

#include "isthmus/base/object_store.h"

namespace isthmus {

/// Throws Error(config) for a key that is no relative path without "..".
class FolderStore final : public ObjectStore {
 public:
  explicit FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void put(const std::string& key, std::span<const std::byte> bytes) override;
  bool put_file(const std::string& key, const std::filesystem::path& file, const Stopped& stopped) override;
  std::optional<Bytes> get(const std::string& key, std::uint64_t offset, std::uint64_t most) override;
  std::vector<ObjectEntry> list(const std::string& prefix) override;
  void remove(const std::string& key) override;
  std::string name(const std::string& key) const override;

 private:
  [[nodiscard]] std::filesystem::path path(const std::string& key) const;
  std::filesystem::path folder_;
};

}  // namespace isthmus
