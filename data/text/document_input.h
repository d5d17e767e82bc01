#pragma once
// The inputs that documents are read from, and their lines.

#include <simdjson.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "isthmus/base/aligned.h"
#include "text/documents.h"

namespace isthmus::data {

inline constexpr std::string_view standard_input_path = "-";

/// A file, standard input or a stream, which is read once from its start to its end.
class Input {
 public:
  explicit Input(LiveInput& live);
  /// Opens the file; if that fails, problem() returns the reason.
  explicit Input(const DocumentFile& file);
  ~Input();
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  /// The error so far, or an empty string.
  [[nodiscard]] std::string problem() const;
  /// Fills `bytes`, unless the input ends or fails before; returns the number of bytes filled.
  std::size_t read(std::span<char> bytes);
  /// Reads the bytes that are available, at least one unless the input has ended.
  std::size_t read_some(std::span<char> bytes);
  [[nodiscard]] bool live() const { return live_ != nullptr; }
  /// Whether a stream has nothing to read at present.
  [[nodiscard]] bool quiet() const;
  /// Whether the last read() returned because the connection broke or a stop was requested, not at the
  /// input's end.
  [[nodiscard]] bool cut_off() const;
  /// Reconnects a stream that was cut off, to continue from `from`. False if nothing was cut off or a stop
  /// was requested.
  [[nodiscard]] bool go_on(const Place& from) const;
  void skip(std::uint64_t bytes);
  /// Bytes of the expected size that have not been read.
  [[nodiscard]] std::uint64_t missing() const { return left_ == DocumentFile::unknown ? 0 : left_; }

 private:
  LiveInput* live_ = nullptr;
  bool standard_;
  int number_;
  std::uint64_t left_;
  int error_ = 0;
};

/// The lines of an input, one after the other, in a buffer with the padding that the parser needs after each.
class Lines {
 public:
  static constexpr std::size_t padding = simdjson::SIMDJSON_PADDING;
  /// Not zeroed before it is written.
  using Buffer = AlignedVector<char>;

  /// `buffer` holds at least a piece and the padding. `idle` is called when a stream has nothing to read.
  /// `whole` sets whether to look for the end of a line that is too long; it may never come.
  Lines(Input& input, std::uint64_t longest, bool whole, Buffer& buffer, const std::function<void()>& idle);

  struct Line {
    std::string_view text;    ///< without its line end; undefined if it is too long
    std::uint64_t bytes = 0;  ///< bytes of the whole line, with its line end
    std::uint32_t checksum = 0;
    bool too_long = false;
  };
  /// The next line; nullopt at the end, and if a stream was cut off, which discards a partial line. If `sum`
  /// is true, continues `checksum`, the checksum of everything before.
  [[nodiscard]] std::optional<Line> next(bool sum, std::uint32_t checksum);

 private:
  [[nodiscard]] Line ended(Line line, std::size_t length, std::size_t newline);
  void drop(Line& line, std::size_t length);
  [[nodiscard]] std::uint32_t crc(std::size_t length, std::uint32_t before) const;
  [[nodiscard]] bool fill();

  Input& input_;
  std::size_t longest_;
  bool whole_;
  Buffer& buffer_;
  const std::function<void()>& idle_;
  std::size_t begin_ = 0, end_ = 0, used_ = 0;
  bool sum_ = false;
};

}  // namespace isthmus::data
