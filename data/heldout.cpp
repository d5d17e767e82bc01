#include "isthmus/data/heldout.h"

#include <algorithm>

#include "isthmus/data/sampler.h"
#include "window.h"

namespace isthmus::data {

HeldOut::HeldOut(const Corpus& corpus, std::int64_t seq_len, std::int64_t sequences, std::int64_t batch,
                 Device& device) {
  const auto windows = window_count(corpus.tokens(Split::heldout), static_cast<std::uint64_t>(seq_len));
  const auto count = std::min<std::int64_t>(sequences, static_cast<std::int64_t>(windows));
  if (count <= 0) return;
  const auto bytes = batch_bytes(count, seq_len);
  auto host = device.host_buffer(bytes);
  buffer_ = device.device_buffer(bytes);
  for (std::int64_t first = 0; first < count; first += batch) {
    Batch made;
    made.sequences = std::min(batch, count - first);
    made.seq_len = seq_len;
    const auto offset = batch_bytes(first, seq_len);
    made.inputs = reinterpret_cast<std::int64_t*>(buffer_->data() + offset);
    made.targets = made.inputs + made.sequences * seq_len;
    auto* inputs = reinterpret_cast<std::int64_t*>(host->data() + offset);
    auto* targets = inputs + made.sequences * seq_len;
    for (std::int64_t b = 0; b < made.sequences; ++b) {
      const auto window =
          heldout_window(static_cast<std::uint64_t>(first + b), static_cast<std::uint64_t>(count), windows);
      read_window(corpus, Split::heldout, window, static_cast<std::size_t>(seq_len), inputs + b * seq_len,
                  targets + b * seq_len);
    }
    batches_.push_back(made);
  }
  buffer_->fill(*host, bytes);
}

}  // namespace isthmus::data
