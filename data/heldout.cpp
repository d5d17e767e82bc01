#include "isthmus/data/heldout.h"

#include <algorithm>
#include <cassert>

#include "isthmus/data/sampler.h"
#include "window.h"

namespace isthmus::data {

HeldOut::HeldOut(const Corpus& corpus, std::int64_t seq_len, std::int64_t sequences, std::int64_t batch,
                 Device& device)
    : seq_len_(seq_len), batch_(batch) {
  const auto windows = window_count(corpus.tokens(Split::heldout), static_cast<std::uint64_t>(seq_len));
  sequences_ = std::min<std::int64_t>(sequences, static_cast<std::int64_t>(windows));
  if (sequences_ <= 0) return;
  const auto bytes = batch_bytes(sequences_, seq_len);
  const auto host = device.host_buffer(bytes);
  buffer_ = device.device_buffer(bytes);
  auto* inputs = reinterpret_cast<std::int64_t*>(host->data());
  auto* targets = inputs + sequences_ * seq_len;
  for (std::int64_t i = 0; i < sequences_; ++i) {
    const auto window =
        heldout_window(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(sequences_), windows);
    read_window(corpus, Split::heldout, window, static_cast<std::size_t>(seq_len), inputs + i * seq_len,
                targets + i * seq_len);
  }
  buffer_->fill(*host, bytes);
}

std::vector<Batch> HeldOut::share(std::uint64_t member, std::uint64_t members) const {
  assert(member < members);
  const auto count = static_cast<std::uint64_t>(sequences_);
  const auto end = static_cast<std::int64_t>((member + 1) * count / members);
  std::vector<Batch> batches;
  for (auto first = static_cast<std::int64_t>(member * count / members); first < end; first += batch_) {
    Batch made;
    made.sequences = std::min(batch_, end - first);
    made.seq_len = seq_len_;
    made.inputs = reinterpret_cast<std::int64_t*>(buffer_->data()) + first * seq_len_;
    made.targets = made.inputs + sequences_ * seq_len_;
    batches.push_back(made);
  }
  return batches;
}

}  // namespace isthmus::data
