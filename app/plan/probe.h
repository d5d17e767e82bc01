#pragma once
// Measurements for a plan on this machine.

#include <string>

#include "isthmus/outer_sync/plan/predict.h"
#include "isthmus/quant/codec.h"

namespace isthmus::app {

/// Measures encoding, reducing and applying with this codec on one thread; takes half a second.
[[nodiscard]] outer_sync::plan::Speeds measure_speeds(const quant::CodecSpec& spec);
/// Speeds assumed without measurements: those of `bench outer` on one core (docs/results.md); for "cuda",
/// derived from GPU memory bandwidth.
[[nodiscard]] outer_sync::plan::Speeds usual_speeds(const std::string& device);

}  // namespace isthmus::app
