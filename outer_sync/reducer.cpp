#include <algorithm>
#include <cassert>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/memory.h"
#include "isthmus/outer_sync/round_exchange.h"

namespace isthmus::outer_sync {

quant::Noise noise_of(const FragmentLayout& layout, ChunkId chunk, std::uint64_t seed,
                      protocol::Round round) {
  return {quant::noise_key(seed, layout.fragment_of(chunk), round), layout.place_in_fragment(chunk)};
}

namespace {

std::size_t largest_chunk(const FragmentLayout& layout) {
  std::uint64_t largest = 0;
  for (ChunkId k = 0; k < layout.chunk_count(); ++k) largest = std::max(largest, layout.chunk(k).size);
  return largest;
}

constexpr std::size_t most_sums_held = 16;  // one for each thread that reduces

}  // namespace

std::size_t largest_encoded_chunk(const FragmentLayout& layout, const protocol::CodecPlan& codecs) {
  const auto n = largest_chunk(layout);
  return std::max(quant::encoded_size(codecs.codec, n), quant::encoded_size(codecs.warmup_codec, n));
}

Reducer::Reducer(const FragmentLayout& layout, protocol::CodecPlan codecs)
    : layout_(layout),
      codecs_(codecs),
      residuals_(layout.chunk_count()),
      buffers_(largest_encoded_chunk(layout, codecs), usual_chunks(layout)),
      sums_(largest_chunk(layout), most_sums_held) {}

quant::Feedback Reducer::feedback(ChunkId chunk, protocol::Round round) {
  auto& residual = residuals_[chunk];
  if (round == codecs_.warmup_rounds + 1) residual = {};
  const bool warmup = round <= codecs_.warmup_rounds;
  if (!warmup && !codecs_.error_feedback) return {};
  residual.resize(layout_.chunk(chunk).size, 0.0F);
  return {residual, warmup ? 1 : codecs_.feedback_decay};
}

protocol::SharedBytes Reducer::reduce(ChunkId chunk, protocol::Round round,
                                      std::span<const protocol::SharedBytes> contributions,
                                      std::span<const std::uint64_t> weights) {
  assert(!contributions.empty() && weights.size() == contributions.size());
  const auto largest = static_cast<float>(std::ranges::max(weights));
  const auto& codec = codecs_.of(round);
  const auto size = layout_.chunk(chunk).size;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::divergence,
                what + " in chunk " + std::to_string(chunk) + " of round " + std::to_string(round));
  };
  const auto sum = sums_.take(size);
  std::ranges::fill(*sum, 0.0F);
  float divisor = 0;
  for (std::size_t m = 0; m < contributions.size(); ++m) {
    const float weight = largest > 0 ? static_cast<float>(weights[m]) / largest : 1;
    divisor += weight;
    if (!quant::decode_accumulate(codec, *contributions[m], weight, *sum)) {
      refuse("member " + std::to_string(m) + " sent bytes that do not decode");
    }
  }
  auto bytes = buffers_.take(quant::encoded_size(codec, size));
  const auto bad = quant::encode_quotient(codec, *sum, divisor, feedback(chunk, round),
                                          noise_of(layout_, chunk, codecs_.seed, round), *bytes);
  if (bad)
    refuse("the mean is not finite, or too large for its codec, at element " +
           std::to_string(layout_.place_in_fragment(chunk) + *bad) + " of fragment " +
           std::to_string(layout_.fragment_of(chunk)) + ",");
  return bytes;
}

void Reducer::restore(Residuals residuals) {
  bool fits = residuals.size() == layout_.chunk_count();
  for (ChunkId k = 0; fits && k < residuals.size(); ++k) {
    fits = residuals[k].empty() || residuals[k].size() == layout_.chunk(k).size;
  }
  if (!fits) throw Error(ErrorKind::data, "checkpoint: the owner's residuals are not of this layout");
  residuals_ = std::move(residuals);
}

}  // namespace isthmus::outer_sync
