#pragma once
// Scalars in TensorBoard's event files, in addition to the metrics: records of u64 length, its masked CRC32C,
// the data and its masked CRC32C (TFRecord), little-endian; each is an `Event` in Protocol Buffers
// (tensorflow/core/util/event.proto).

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "isthmus/base/append_file.h"

namespace isthmus {

class EventFile {
 public:
  /// Creates a new file in the folder, named after the time and the process. TensorBoard shows all files of a
  /// folder as one run and reads them by name, so the name follows those of the files there. Throws
  /// Error(data) naming it. `say`: see AppendFile.
  explicit EventFile(const std::filesystem::path& folder, AppendFile::Say say = nullptr);
  /// Writes one event, which is readable when this returns. Without `say`, throws Error(data) if writing
  /// fails.
  void write(std::uint64_t step, const std::vector<std::pair<std::string_view, double>>& scalars);
  /// Makes TensorBoard drop all values of this step and later ones that it has read in this folder: the run
  /// has gone back.
  void restart(std::uint64_t step);
  /// Bytes in the file.
  [[nodiscard]] std::uint64_t size() const { return file_.size(); }

 private:
  void write_record(std::string_view event);
  AppendFile file_;
};

/// TensorBoard's event files in a folder, unsorted; empty if the folder cannot be read.
[[nodiscard]] std::vector<std::filesystem::path> event_files_in(const std::filesystem::path& folder);
/// Renames the event files in a folder, so that TensorBoard no longer shows them. Returns their number.
/// Throws std::filesystem::filesystem_error.
std::size_t set_event_files_aside(const std::filesystem::path& folder);

}  // namespace isthmus
