#pragma once
// The matrix product; on a CPU, by the faster of libtorch's libraries.

#include <ATen/core/Tensor.h>

namespace isthmus::trainer {

/// x W^T, plus b unless that is undefined. libtorch uses MKL for fp32 on CPUs, which on processors other than
/// Intel's is slower than oneDNN (docs/results/speed.md): there, this uses oneDNN, which libtorch uses for
/// bf16 anyway. Records no gradient.
[[nodiscard]] at::Tensor linear_product(const at::Tensor& x_NI, const at::Tensor& weight_OI,
                                        const at::Tensor& bias_O = {});

}  // namespace isthmus::trainer
