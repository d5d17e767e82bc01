#pragma once
// Curves for TensorBoard: event files in a folder, from lines of a metrics.jsonl. A replica writes its own,
// and the coordinator those of replicas on other machines and of the evaluations, so tags and values are the
// same.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "isthmus/base/append_file.h"
#include "isthmus/base/event_file.h"

namespace isthmus::app {

/// The figures of one line that curves show.
struct Scalars {
  std::uint64_t step = 0;
  /// Whether the lines of this kind come in the order of their steps, so that a step below the one before
  /// means that the run has gone back. Lines of the other kind may be reported again.
  bool in_order = true;
  std::vector<std::pair<std::string_view, double>> values;
};
/// nullopt if the line has none. It may come from another machine, and be anything.
[[nodiscard]] std::optional<Scalars> scalars_in(const nlohmann::ordered_json& line);

/// Complete lines in the last `max_bytes` of a text file; empty if it does not exist.
[[nodiscard]] std::vector<std::string> last_lines(const std::filesystem::path& file, std::uint64_t max_bytes);

class Curves {
 public:
  /// Continues the curves of earlier processes in the folder; `metrics` is the file with the lines that they
  /// show. The first line creates the event file. Errors are only reported to `say`.
  Curves(std::filesystem::path folder, const std::filesystem::path& metrics, AppendFile::Say say);

  /// Adds the figures of a line. If the run has gone back, TensorBoard drops those of this step and later.
  void add(const nlohmann::ordered_json& line);
  /// The next lines come from another process, which may make the newest step again.
  void begin_again() { begins_ = true; }
  /// Bytes of all event files in the folder.
  [[nodiscard]] std::uint64_t size() const { return earlier_ + (file_ ? file_->size() : 0); }

  /// Bytes that `add` writes at most.
  static constexpr std::uint64_t max_bytes_of_line = 768;

 private:
  enum class Order : std::uint8_t { next, repeated, went_back };
  /// Compares the step with those of the figures before, and remembers it.
  [[nodiscard]] Order order_of(const Scalars& scalars);

  const std::filesystem::path folder_;
  const AppendFile::Say say_;
  std::uint64_t earlier_ = 0;             ///< bytes of earlier files
  std::optional<EventFile> file_;         ///< null before the first line
  bool failed_ = false;                   ///< the file cannot be created
  bool begins_ = true;                    ///< no line in order has come from the present process
  std::optional<std::uint64_t> ordered_;  ///< the newest step of lines in order
  std::optional<std::uint64_t> other_;    ///< and of the others
};

}  // namespace isthmus::app
