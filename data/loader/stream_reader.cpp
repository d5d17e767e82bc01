#include "loader/stream_reader.h"

#include <algorithm>

#include "corpus/token_stream.h"
#include "isthmus/data/sampler.h"

namespace isthmus::data {

StreamReader::StreamReader(const DataSet& set, std::uint64_t seq_len,
                           std::function<std::unique_ptr<WindowReader>()> make_epochs)
    : set_(set), seq_len_(seq_len), make_epochs_(std::move(make_epochs)) {
  if (set_.stream()->ended()) begin_epochs();
}

void StreamReader::begin_epochs() {
  streamed_ = window_count(set_.tokens(Split::train), seq_len_);
  epochs_ = make_epochs_();
}

std::uint64_t StreamReader::epoch(std::uint64_t sequence) const {
  return !streamed_ || sequence < *streamed_ ? 0 : 1 + epochs_->epoch(0, sequence - *streamed_);
}

/// The sequences continue from there, so they are read as far ahead as possible.
void StreamReader::expect(std::uint64_t sequence, std::uint64_t count, ReaderPool& pool) {
  const auto begin = std::max(expected_, sequence - *streamed_);
  const auto end = sequence - *streamed_ + count + epochs_->ahead();
  if (begin >= end) return;
  epochs_->expect({0, begin, end}, pool);
  expected_ = end;
}

WindowReader::Rows StreamReader::rows(std::uint64_t sequence, std::span<const std::byte*> out,
                                      ReaderPool& pool, std::byte* space) {
  if (!streamed_ || sequence < *streamed_) {
    const auto stop = pool.stop_token();
    if (set_.stream()->take(sequence * seq_len_, seq_len_ + 1, space, stop) == seq_len_ + 1) {
      out.front() = space;
      return {1, nullptr};
    }
    if (stop.stop_requested()) return {0, nullptr};
    begin_epochs();
  }
  expect(sequence, out.size(), pool);
  return epochs_->rows(out, pool, space);
}

}  // namespace isthmus::data
