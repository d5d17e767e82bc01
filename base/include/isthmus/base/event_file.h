#pragma once
// Scalars in TensorBoard's event files, in addition to the metrics: records of u64 length, its masked CRC32C,
// the data and its masked CRC32C (TFRecord), little-endian; each is an `Event` in Protocol Buffers
// (tensorflow/core/util/event.proto).

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "isthmus/base/append_file.h"

namespace isthmus {

class EventFile {
 public:
  /// Creates a new file in the folder, named after the time and the process; TensorBoard shows all files of a
  /// folder. Throws Error(data) naming it. `say`: see AppendFile.
  explicit EventFile(const std::filesystem::path& folder, AppendFile::Say say = nullptr);
  /// Writes one event, which is readable when this returns. Without `say`, throws Error(data) if writing
  /// fails.
  void write(std::uint64_t step, const std::vector<std::pair<std::string_view, double>>& scalars);

 private:
  void write_record(std::string_view event);
  AppendFile file_;
};

}  // namespace isthmus
