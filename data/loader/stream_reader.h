#pragma once
// Windows of a stream: in order of arrival, and once the stream has ended in epochs over all of them, like
// those of any other data set.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "isthmus/data/corpus.h"
#include "loader/window_reader.h"

namespace isthmus::data {

/// Used by one thread, for the one replica that reads the stream.
class StreamReader {
 public:
  /// `set` is a stream, and must outlive this. `make_epochs` is called once, after the stream has ended.
  StreamReader(const DataSet& set, std::uint64_t seq_len,
               std::function<std::unique_ptr<WindowReader>()> make_epochs);
  /// 0 while sequences come from the stream.
  [[nodiscard]] std::uint64_t epoch(std::uint64_t sequence) const;
  /// Like WindowReader::rows(), from `sequence` on; waits for the stream. The caller requests every sequence
  /// in order.
  [[nodiscard]] WindowReader::Rows rows(std::uint64_t sequence, std::span<const std::byte*> out,
                                        ReaderPool& pool, std::byte* space);

 private:
  void begin_epochs();
  void expect(std::uint64_t sequence, std::uint64_t count, ReaderPool& pool);

  const DataSet& set_;
  std::uint64_t seq_len_;
  std::function<std::unique_ptr<WindowReader>()> make_epochs_;
  std::optional<std::uint64_t> streamed_;  ///< sequences that came from the stream, once known
  std::unique_ptr<WindowReader> epochs_;
  std::uint64_t expected_ = 0;  ///< first sequence of `epochs_` that it does not expect yet
};

}  // namespace isthmus::data
