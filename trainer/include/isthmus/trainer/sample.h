#pragma once
// Text from a model, token by token.

#include <cstdint>
#include <span>
#include <vector>

#include "isthmus/trainer/evaluate.h"

namespace isthmus::trainer {

struct SampleOptions {
  std::uint64_t tokens = 200;  ///< how many to add
  double temperature = 0.8;    ///< 0 takes the likeliest token
  std::uint64_t seed = 0;      ///< token i is a pure function of (seed, i) and the model's logits
};

/// The ids that follow `prompt` (at least one id; it is not repeated in the result). Each token costs one
/// forward pass over the last longest_sequence() tokens: no keys and values are kept, at the sizes this is
/// for they would save little.
[[nodiscard]] std::vector<std::int64_t> sample(Inference& inference, std::span<const std::int64_t> prompt,
                                               const SampleOptions& options);

}  // namespace isthmus::trainer
