#pragma once
// Scalars in TensorBoard's event files, beside the metrics: records of u64 length, its masked CRC32C, the
// data and its masked CRC32C (TFRecord), little-endian, each an `Event` in Protocol Buffers
// (tensorflow/core/util/event.proto).

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "isthmus/base/append_file.h"

namespace isthmus {

class EventFile {
 public:
  /// Makes a new file in the folder, by the time and the process: TensorBoard shows all that are in one.
  /// Throws Error(data) naming it. `say`: see AppendFile.
  explicit EventFile(const std::filesystem::path& folder, AppendFile::Say say = nullptr);
  /// One event, which is readable when this returns. Throws Error(data) when it cannot be written, unless
  /// that is said.
  void write(std::uint64_t step, std::initializer_list<std::pair<std::string_view, double>> scalars);

 private:
  void write_record(std::string_view event);
  AppendFile file_;
};

}  // namespace isthmus
