#pragma once
// A file that records are appended to, each whole or not at all.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "isthmus/base/file.h"

namespace isthmus {

class AppendFile {
 public:
  using Say = std::function<void(const std::string&)>;
  /// Makes the file if need be. Throws Error(data) naming it. With `say` a record that cannot be written (the
  /// disk is full) is left out, which is said for the first of several in a row: for what is there for people
  /// alone.
  explicit AppendFile(const std::filesystem::path& file, Say say = nullptr);
  /// Readable when this returns. Throws Error(data) naming the file when it cannot be written; the file is
  /// then as it was.
  void append(std::string_view record);
  /// Bytes in it.
  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  File file_;
  Say say_;
  std::uint64_t size_;
  bool said_ = false;
};

}  // namespace isthmus
