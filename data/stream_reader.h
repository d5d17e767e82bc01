#pragma once
// Windows of a stream: in the order in which they come, and once it has ended, in epochs over all of them,
// like those of any other data set.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "isthmus/data/corpus.h"
#include "window_reader.h"

namespace isthmus::data {

/// As a replica goes through it, whose own it is. Used by one thread.
class StreamReader {
 public:
  /// `set` is of a stream, and outlives this. `make_epochs` is called once that has ended.
  StreamReader(const DataSet& set, std::uint64_t seq_len,
               std::function<std::unique_ptr<WindowReader>()> make_epochs);
  /// 0 as long as sequences come out of the stream.
  [[nodiscard]] std::uint64_t epoch(std::uint64_t sequence) const;
  /// Like WindowReader's, from `sequence` on, waiting for the stream. No sequence is left out.
  [[nodiscard]] WindowReader::Rows rows(std::uint64_t sequence, std::span<const std::byte*> out,
                                        ReaderPool& pool, std::byte* space);

 private:
  void begin_epochs();
  void expect(std::uint64_t sequence, std::uint64_t count, ReaderPool& pool);

  const DataSet& set_;
  std::uint64_t seq_len_;
  std::function<std::unique_ptr<WindowReader>()> make_epochs_;
  std::optional<std::uint64_t> streamed_;  ///< sequences out of the stream, once that is known
  std::unique_ptr<WindowReader> epochs_;
  std::uint64_t expected_ = 0;  ///< of its sequences the first one that is not expected yet
};

}  // namespace isthmus::data
