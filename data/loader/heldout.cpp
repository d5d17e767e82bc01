#include "isthmus/data/heldout.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

#include "isthmus/data/sampler.h"

namespace isthmus::data {

namespace {

/// Windows to take from each data set.
std::vector<std::uint64_t> windows_to_take(const Corpus& corpus, std::uint64_t seq_len,
                                           std::uint64_t sequences) {
  std::vector<std::uint64_t> counts;
  double weight_before = 0;
  for (const auto& set : corpus.heldout_sets()) {
    const auto border = [&](double weight) {
      return static_cast<std::uint64_t>(std::llround(weight * static_cast<double>(sequences)));
    };
    const auto wanted = border(weight_before + set.weight()) - border(weight_before);
    weight_before += set.weight();
    counts.push_back(std::min(wanted, window_count(set.tokens(Split::heldout), seq_len)));
  }
  return counts;
}

}  // namespace

HeldOut::HeldOut(const Corpus& corpus, std::int64_t seq_len, std::int64_t sequences, std::int64_t batch,
                 Device& device)
    : seq_len_(seq_len), batch_(batch), width_(corpus.width()) {
  const auto length = static_cast<std::uint64_t>(seq_len);
  const auto counts = windows_to_take(corpus, length, static_cast<std::uint64_t>(sequences));
  const auto all = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  sequences_ = static_cast<std::int64_t>(all);
  if (all == 0) return;
  const auto row_bytes = (length + 1) * width_;
  const auto host = device.host_buffer(all * row_bytes);
  buffer_ = device.device_buffer(all * row_bytes);
  auto* row = host->data();
  for (std::size_t s = 0; s < counts.size(); ++s) {
    const auto& set = corpus.heldout_sets()[s];
    const auto windows = window_count(set.tokens(Split::heldout), length);
    for (std::uint64_t i = 0; i < counts[s]; ++i, row += row_bytes) {
      set.read(Split::heldout, heldout_window(i, counts[s], windows) * length, length + 1, width_, row);
    }
  }
  buffer_->fill(*host, all * row_bytes);
  for (std::uint64_t i = 0; i < all; ++i) rows_.push_back(buffer_->data() + i * row_bytes);
}

std::vector<Batch> HeldOut::share(std::uint64_t member, std::uint64_t members) const {
  assert(member < members);
  const auto count = static_cast<std::uint64_t>(sequences_);
  const auto end = static_cast<std::int64_t>((member + 1) * count / members);
  std::vector<Batch> batches;
  for (auto first = static_cast<std::int64_t>(member * count / members); first < end; first += batch_) {
    Batch made;
    made.rows = std::span(rows_).subspan(static_cast<std::size_t>(first),
                                         static_cast<std::size_t>(std::min(batch_, end - first)));
    made.together = true;
    made.seq_len = seq_len_;
    made.width = width_;
    batches.push_back(made);
  }
  return batches;
}

}  // namespace isthmus::data
