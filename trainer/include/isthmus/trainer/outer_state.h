#pragma once
// Creates a replica's outer state, on the device that has its parameters.

#include <memory>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/engine/outer_state.h"
#include "isthmus/trainer/replica.h"

namespace isthmus::trainer {

/// Computes with the passes of the replica's device. The replica must outlive it.
[[nodiscard]] std::unique_ptr<outer_sync::OuterState> make_outer_state(Replica& replica,
                                                                       const outer_sync::OuterConfig& config);

/// The passes of one GPU over encoded bytes, concurrent with libtorch's default stream. Throws Error(config)
/// if there is no such GPU or this build has no CUDA.
[[nodiscard]] std::unique_ptr<outer_sync::Passes> make_gpu_passes(int gpu);

}  // namespace isthmus::trainer
