#pragma once
// What documents are read from, and the lines in it.

#include <simdjson.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "documents.h"
#include "isthmus/base/aligned.h"

namespace isthmus::data {

inline constexpr std::string_view standard_input_path = "-";

/// A file, standard input or a stream that is read once from its begin to its end.
class Input {
 public:
  explicit Input(LiveInput& live);
  /// Not open where it cannot be, then problem() says why.
  explicit Input(const DocumentFile& file);
  ~Input();
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  /// What has gone wrong so far, or nothing.
  [[nodiscard]] std::string problem() const;
  /// Fills `bytes` unless there is an end before, an error too; the number that it has filled.
  std::size_t read(std::span<char> bytes);
  /// As many as there are, one at least unless there is an end.
  std::size_t read_some(std::span<char> bytes);
  [[nodiscard]] bool live() const { return live_ != nullptr; }
  /// Whether a stream has nothing to read at present.
  [[nodiscard]] bool quiet() const;
  /// Whether the last read() found no end, but a connection that is gone or a wish to stop.
  [[nodiscard]] bool cut_off() const;
  /// Dials again what was cut off. False if nobody wants that.
  [[nodiscard]] bool go_on(const Place& from) const;
  void skip(std::uint64_t bytes);
  /// What should have been read and was not.
  [[nodiscard]] std::uint64_t missing() const { return left_ == DocumentFile::unknown ? 0 : left_; }

 private:
  LiveInput* live_ = nullptr;
  bool standard_;
  int number_;
  std::uint64_t left_;
  int error_ = 0;
};

/// The lines of an input, one after the other, in a buffer that has as many bytes behind each as the parser
/// wants.
class Lines {
 public:
  static constexpr std::size_t padding = simdjson::SIMDJSON_PADDING;
  /// That is not cleared before it is written.
  using Buffer = AlignedVector<char>;

  /// The buffer has a piece and the padding at least. `idle` is called where a stream has nothing to read;
  /// `whole` says whether the end of a line that is too long is looked for, which may never come.
  Lines(Input& input, std::uint64_t longest, bool whole, Buffer& buffer, const std::function<void()>& idle);

  struct Line {
    std::string_view text;    ///< without its end; of one that is too long the begin
    std::uint64_t bytes = 0;  ///< of all of it, with its end
    std::uint32_t checksum = 0;
    bool too_long = false;
  };
  /// Nothing at the end, or where a stream was cut off: then what was read of a line is forgotten.
  /// `checksum` is of what was before; it is carried on if `sum` says so.
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
