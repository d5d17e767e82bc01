#pragma once
// Metrics as JSON lines: one object per line, appended and flushed, so that a file is readable while the run
// goes on.

#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

namespace isthmus {

/// Safe to call from any thread. Non-finite numbers are written as the strings "nan", "inf", "-inf" (JSON has
/// none).
class Metrics {
 public:
  /// Records nothing.
  Metrics() = default;
  /// Opens for appending. Throws Error(data) naming the file.
  explicit Metrics(const std::filesystem::path& file);
  /// Throws Error(data) when the line cannot be written.
  void write(const nlohmann::ordered_json& line);

 private:
  std::mutex mutex_;
  std::ofstream file_;
};

}  // namespace isthmus
