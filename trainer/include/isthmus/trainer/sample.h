#pragma once
// Samples text from a model, token by token.

#include <cstdint>
#include <span>
#include <vector>

#include "isthmus/trainer/evaluate.h"

namespace isthmus::trainer {

struct SampleOptions {
  std::uint64_t tokens = 200;  ///< number of tokens to generate
  double temperature = 0.8;    ///< 0: always the likeliest token
  std::uint64_t seed = 0;      ///< token i is a pure function of (seed, i) and the model's logits
};

/// Returns the ids that follow `prompt` (at least one id; not repeated in the result). Each token costs one
/// forward pass over the last longest_sequence() tokens; keys and values are not cached, which would save
/// little at the sizes that this is for.
[[nodiscard]] std::vector<std::int64_t> sample(Inference& inference, std::span<const std::int64_t> prompt,
                                               const SampleOptions& options);

}  // namespace isthmus::trainer
