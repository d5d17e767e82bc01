#pragma once
// Derives from the config which codec each round of a run uses.

#include <cstdint>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/protocol/member.h"

namespace isthmus::outer_sync {

/// `config` must be resolved; `seed` is the run's seed.
[[nodiscard]] protocol::CodecPlan codec_plan(const OuterConfig& config, std::uint64_t seed = 0);

}  // namespace isthmus::outer_sync
