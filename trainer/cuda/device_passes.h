#pragma once
// The outer loop's passes on a GPU. no_cuda.cpp replaces this in builds without CUDA.

#include <memory>

#include "isthmus/outer_sync/engine/passes.h"

namespace isthmus::trainer::cuda {

/// `model_stream` (a cudaStream_t) is the stream in which the model computes; null is the default stream.
/// Throws Error(config) if there is no such GPU or the build has no CUDA.
[[nodiscard]] std::unique_ptr<outer_sync::Passes> make_device_passes(int ordinal, void* model_stream);

}  // namespace isthmus::trainer::cuda
