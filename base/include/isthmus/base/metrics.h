#pragma once
// Metrics as JSON lines: one object per line, appended and flushed, so that a file is readable while the run
// goes on.

#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "isthmus/base/append_file.h"

namespace isthmus {

/// Safe to call from any thread. Non-finite numbers are written as the strings "nan", "inf", "-inf" (JSON has
/// none).
class Metrics {
 public:
  /// Records nothing.
  Metrics() = default;
  /// Opens for appending. Throws Error(data) naming the file. `say`: see AppendFile.
  explicit Metrics(const std::filesystem::path& file, AppendFile::Say say = nullptr);
  /// Every line that is written from now on goes there too, without its line break. Not while others write.
  void copy_to(std::function<void(std::string line)> copy) { copy_ = std::move(copy); }
  /// Throws Error(data) when the line cannot be written, unless that is said.
  void write(const nlohmann::ordered_json& line);

 private:
  std::mutex mutex_;
  std::optional<AppendFile> file_;
  std::function<void(std::string)> copy_;
  bool mend_ = false;  ///< what is there ends in half a line
};

}  // namespace isthmus
