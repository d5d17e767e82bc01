#include "stream_reader.h"

#include <algorithm>

#include "isthmus/data/sampler.h"
#include "token_stream.h"

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

/// They go on from here, so they are read as far ahead as any.
void StreamReader::expect_from(std::uint64_t sequence, ReaderPool& pool) {
  const auto begin = std::max(expected_, sequence - *streamed_);
  const auto end = sequence - *streamed_ + 1 + epochs_->ahead();
  if (begin >= end) return;
  epochs_->expect({0, begin, end}, pool);
  expected_ = end;
}

WindowReader::Row StreamReader::row(std::uint64_t sequence, ReaderPool& pool, std::byte* space) {
  if (!streamed_ || sequence < *streamed_) {
    const auto stop = pool.stop_token();
    if (set_.stream()->take(sequence * seq_len_, seq_len_ + 1, space, stop) == seq_len_ + 1)
      return {space, nullptr};
    if (stop.stop_requested()) return {nullptr, nullptr};
    begin_epochs();
  }
  expect_from(sequence, pool);
  return epochs_->row(pool, space);
}

}  // namespace isthmus::data
