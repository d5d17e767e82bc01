#pragma once
// Metrics as JSON lines: one object per line, appended and flushed, so that the file is readable during the
// run.

#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "isthmus/base/append_file.h"

namespace isthmus {

/// Safe to call from any thread. Non-finite numbers are written as the strings "nan", "inf" and "-inf",
/// because JSON has none.
class Metrics {
 public:
  /// Records nothing.
  Metrics() = default;
  /// Opens for appending. Throws Error(data) naming the file. `say`: see AppendFile.
  explicit Metrics(const std::filesystem::path& file, AppendFile::Say say = nullptr);
  /// Passes every line written from now on to `copy` too, without its line break. Do not call while others
  /// write.
  void copy_to(std::function<void(std::string line)> copy) { copy_ = std::move(copy); }
  /// Without `say`, throws Error(data) if the line cannot be written.
  void write(const nlohmann::ordered_json& line);

 private:
  std::mutex mutex_;
  std::optional<AppendFile> file_;
  std::function<void(std::string)> copy_;
  bool mend_ = false;  ///< the file ends in half a line
};

}  // namespace isthmus
