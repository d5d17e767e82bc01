#include "isthmus/outer_sync/engine/reducer.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/engine/memory.h"
#include "isthmus/outer_sync/engine/sketch.h"

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

constexpr std::size_t max_sums_held = 16;  // one per reducing thread

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
      sums_(largest_chunk(layout), max_sums_held) {}

quant::Feedback Reducer::feedback(ChunkId chunk, protocol::Round round) {
  auto& residual = residuals_[chunk];
  if (round == codecs_.warmup_rounds + 1) residual = {};
  const bool warmup = round <= codecs_.warmup_rounds;
  if (!warmup && !codecs_.error_feedback) return {};
  residual.resize(layout_.chunk(chunk).size, 0.0F);
  return {residual, warmup ? 1 : codecs_.feedback_decay};
}

namespace {

/// sum x_i y_i. Products of two fp32 values are exact in fp64, so fused multiply-add makes no difference.
double dot_product(std::span<const float> x, std::span<const float> y) {
  constexpr std::size_t side_by_side = 16;
  std::array<double, side_by_side> sums{};
  std::size_t i = 0;
  for (; i + side_by_side <= x.size(); i += side_by_side) {
    for (std::size_t j = 0; j < side_by_side; ++j)
      sums[j] += static_cast<double>(x[i + j]) * static_cast<double>(y[i + j]);
  }
  for (std::size_t j = 0; i < x.size(); ++i, ++j)
    sums[j] += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  double sum = 0;
  for (const auto part : sums) sum += part;
  return sum;
}

std::string place_of(ChunkId chunk, protocol::Round round) {
  return " in chunk " + std::to_string(chunk) + " of round " + std::to_string(round);
}

}  // namespace

double Reducer::squares(ChunkId chunk, protocol::Round round, const Bytes& bytes) const {
  const auto values = sums_.take(layout_.chunk(chunk).size);
  if (!quant::decode(codecs_.of(round), bytes, *values)) return std::numeric_limits<double>::infinity();
  return dot_product(*values, *values);
}

protocol::Received Reducer::received(ChunkId chunk, protocol::Round round, const Bytes& bytes) const {
  protocol::Received received;
  received.bytes = hash_of(bytes);
  const auto values = sums_.take(layout_.chunk(chunk).size);
  if (quant::decode(codecs_.of(round), bytes, *values)) received.sketch = sketch_of(*values, chunk, round);
  return received;
}

Reduction Reducer::reduce(ChunkId chunk, protocol::Round round,
                          std::span<const protocol::SharedBytes> contributions,
                          std::span<const std::uint64_t> weights, const protocol::RejectRule& reject) {
  assert(!contributions.empty() && weights.size() == contributions.size());
  Reduction out;
  for (const auto& bytes : contributions) out.measured.squares.push_back(squares(chunk, round, *bytes));
  const auto stays = protocol::kept(reject, out.measured.squares);
  std::uint64_t heaviest = 0;
  for (std::size_t m = 0; m < weights.size(); ++m) heaviest = std::max(heaviest, stays[m] ? weights[m] : 0);
  const auto largest = static_cast<float>(heaviest);

  const auto sum = sums_.take(layout_.chunk(chunk).size);
  std::ranges::fill(*sum, 0.0F);
  float divisor = 0;
  for (std::size_t m = 0; m < contributions.size(); ++m) {
    if (!stays[m]) continue;
    const float weight = largest > 0 ? static_cast<float>(weights[m]) / largest : 1;
    divisor += weight;
    if (!quant::decode_accumulate(codecs_.of(round), *contributions[m], weight, *sum)) {
      throw BadContribution(
          "member " + std::to_string(m) + " sent bytes that do not decode" + place_of(chunk, round), m);
    }
  }
  out.measured.dots = dots(round, contributions, *sum, divisor);
  out.measured.mean_squares = dot_product(*sum, *sum) / (double{divisor} * double{divisor});
  const auto biggest = std::ranges::max_element(out.measured.squares) - out.measured.squares.begin();
  out.bytes = encode_mean(chunk, round, *sum, divisor, static_cast<std::size_t>(biggest));
  return out;
}

/// Dot products with the mean, sum / divisor.
std::vector<double> Reducer::dots(protocol::Round round, std::span<const protocol::SharedBytes> contributions,
                                  std::span<const float> sum, float divisor) const {
  std::vector<double> out;
  const auto values = sums_.take(sum.size());
  for (const auto& bytes : contributions) {
    const bool decodes = quant::decode(codecs_.of(round), *bytes, *values);
    out.push_back(decodes ? dot_product(*values, sum) / double{divisor} : 0);
  }
  return out;
}

protocol::SharedBytes Reducer::encode_mean(ChunkId chunk, protocol::Round round, std::span<const float> sum,
                                           float divisor, std::size_t biggest) {
  const auto& codec = codecs_.of(round);
  auto bytes = buffers_.take(quant::encoded_size(codec, sum.size()));
  const auto bad = quant::encode_quotient(codec, sum, divisor, feedback(chunk, round),
                                          noise_of(layout_, chunk, codecs_.seed, round), *bytes);
  if (!bad) return bytes;
  throw BadContribution("the mean is not finite, or too large for its codec, at element " +
                            std::to_string(layout_.place_in_fragment(chunk) + *bad) + " of fragment " +
                            std::to_string(layout_.fragment_of(chunk)) + "," + place_of(chunk, round) +
                            "; the largest contribution is from member " + std::to_string(biggest),
                        biggest);
}

void Reducer::restore(Residuals residuals) {
  bool fits = residuals.size() == layout_.chunk_count();
  for (ChunkId k = 0; fits && k < residuals.size(); ++k) {
    fits = residuals[k].empty() || residuals[k].size() == layout_.chunk(k).size;
  }
  if (!fits) throw Error(ErrorKind::data, "checkpoint: the owner's residuals do not fit this layout");
  residuals_ = std::move(residuals);
}

}  // namespace isthmus::outer_sync
