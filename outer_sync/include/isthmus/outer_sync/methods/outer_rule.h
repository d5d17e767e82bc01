#pragma once
// How a round's result changes the global parameters: one definition for training and for replaying a log.

#include <cstddef>
#include <optional>
#include <span>

#include "isthmus/outer_sync/methods/co2.h"
#include "isthmus/quant/passes.h"

namespace isthmus::outer_sync::methods {

/// The outer step of quant/passes.h, or CO2's.
struct OuterRule {
  quant::OuterStep step;
  std::optional<Co2> co2 = {};
};

/// Decodes one chunk's result and makes the outer step. The spans are as long as the chunk. If the bytes do
/// not decode, returns false and changes nothing.
[[nodiscard]] inline bool apply(const OuterRule& rule, const quant::CodecSpec& spec,
                                std::span<const std::byte> in, std::span<float> theta,
                                std::span<float> velocity, std::span<float> local) {
  return rule.co2 ? co2_apply(spec, in, rule.step, *rule.co2, theta, velocity, local)
                  : quant::decode_apply(spec, in, rule.step, theta, velocity, local);
}

}  // namespace isthmus::outer_sync::methods
