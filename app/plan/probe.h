#pragma once
// What of a plan can be measured on this machine.

#include <string>

#include "isthmus/outer_sync/plan/predict.h"
#include "isthmus/quant/codec.h"

namespace isthmus::app {

/// Encoding, reducing and applying with this codec on one thread, for half a second in all.
[[nodiscard]] outer_sync::plan::Speeds measure_speeds(const quant::CodecSpec& spec);
/// What is assumed where nothing was measured: what `bench outer` has shown of one core (docs/results.md), on
/// "cuda" what a GPU's memory makes of it.
[[nodiscard]] outer_sync::plan::Speeds usual_speeds(const std::string& device);

}  // namespace isthmus::app
