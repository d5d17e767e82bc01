#pragma once
// Passes over flat buffers on a GPU, with the arithmetic and order of adamw.h: the same bits as on a CPU.
// Pointers are device memory; work is submitted to `stream` (a cudaStream_t). no_cuda.cpp replaces this in
// builds without CUDA.

#include <cstdint>

#include "isthmus/trainer/adamw.h"

namespace isthmus::trainer::cuda {

enum class GradientType : std::uint8_t { fp32, bf16 };

/// Waits for the stream. `block_sums` has room for ceil(size / 4096) doubles in device memory, `host_sums` in
/// host memory. Throws Error(data) if CUDA reports an error, like all functions here.
[[nodiscard]] double gradient_norm(const void* gradient, GradientType type, std::uint64_t size,
                                   double* block_sums, double* host_sums, void* stream);

struct AdamWPointers {
  const void* gradient;
  GradientType type;
  float *parameters, *first_moment, *second_moment;
  std::uint16_t* twin;  ///< or null
};
/// Updates the segment's range of all buffers.
void adamw(const AdamWStep& step, const DecaySegment& segment, const AdamWPointers& at, void* stream);

/// Adds outer_sync::digest_of(values) to `sum`, in device memory.
void add_digest(const float* values, std::uint64_t size, std::uint64_t* sum, void* stream);

void round_to_bf16(const float* from, std::uint16_t* to, std::uint64_t size, void* stream);

}  // namespace isthmus::trainer::cuda
