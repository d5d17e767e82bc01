#include "isthmus/trainer/sample.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "isthmus/base/random.h"

namespace isthmus::trainer {
namespace {

constexpr std::uint64_t stream = 0x73616d706c65;  // "sample": separate from other uses of a seed

/// The id at which the running sum of softmax(logits / temperature) passes `unit`, in [0, 1).
std::int64_t draw(std::span<const float> logits, double temperature, double unit) {
  const auto top = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return top - logits.begin();
  std::vector<double> weights(logits.size());
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights[i] = std::exp((static_cast<double>(logits[i]) - *top) / temperature);
    total += weights[i];
  }
  double left = unit * total;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<std::int64_t>(i);
  }
  return top - logits.begin();  // rounding of the sum left a remainder
}

}  // namespace

std::vector<std::int64_t> sample(Inference& inference, std::span<const std::int64_t> prompt,
                                 const SampleOptions& options) {
  assert(!prompt.empty());
  std::vector<std::int64_t> text(prompt.begin(), prompt.end());
  const auto longest = static_cast<std::size_t>(inference.longest_sequence());
  for (std::uint64_t i = 0; i < options.tokens; ++i) {
    const auto logits = inference.next_logits(std::span(text).last(std::min(longest, text.size())));
    text.push_back(draw(logits, options.temperature, random_unit(options.seed, stream, i)));
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

}  // namespace isthmus::trainer
