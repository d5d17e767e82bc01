#pragma once
// Where a replica's outer state lies: with its parameters.

#include <memory>

#include "isthmus/outer_sync/config.h"
#include "isthmus/outer_sync/outer_state.h"
#include "isthmus/trainer/replica.h"

namespace isthmus::trainer {

/// On the replica's device, by that device's passes. The replica must outlive it. Throws Error(config) for a
/// method that the device has no passes for.
[[nodiscard]] std::unique_ptr<outer_sync::OuterState> make_outer_state(Replica& replica,
                                                                       const outer_sync::OuterConfig& config);

}  // namespace isthmus::trainer
