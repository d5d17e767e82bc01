#pragma once
// A file to which records are appended, each completely or not at all.

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
  /// Creates the file if necessary. Throws Error(data) naming it. With `say`, a record that cannot be written
  /// (full disk) is left out, and `say` gets a message for the first of several in a row: for files that no
  /// program depends on.
  explicit AppendFile(const std::filesystem::path& file, Say say = nullptr);
  /// The record is readable when this returns. Throws Error(data) naming the file if it cannot be written;
  /// the file is then unchanged.
  void append(std::string_view record);
  /// Bytes in the file.
  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  File file_;
  Say say_;
  std::uint64_t size_;
  bool said_ = false;
};

}  // namespace isthmus
