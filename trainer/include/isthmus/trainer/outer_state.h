#pragma once
// Where a replica's outer state lies: with its parameters.

#include <memory>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/engine/outer_state.h"
#include "isthmus/trainer/replica.h"

namespace isthmus::trainer {

/// On the replica's device, by that device's passes. The replica must outlive it. Throws Error(config) for a
/// method that the device has no passes for.
[[nodiscard]] std::unique_ptr<outer_sync::OuterState> make_outer_state(Replica& replica,
                                                                       const outer_sync::OuterConfig& config);

/// The passes of one GPU over codecs' bytes, beside libtorch's default stream. Throws Error(config) if there
/// is no such GPU or this build has no CUDA.
[[nodiscard]] std::unique_ptr<outer_sync::DevicePasses> make_gpu_passes(int gpu);

}  // namespace isthmus::trainer
