#pragma once
// The matrix product, on a CPU by whichever of libtorch's libraries is the faster.

#include <ATen/core/Tensor.h>

namespace isthmus::trainer {

/// x W^T, plus b unless that is undefined. libtorch gives a CPU's fp32 to MKL, which on processors that are
/// not Intel's takes a fifth to a third longer than oneDNN (80 against 100 GFLOP/s on two cores of an AMD Zen
/// 4): there it is oneDNN, which has bf16 anyway. No gradient is recorded.
[[nodiscard]] at::Tensor linear_product(const at::Tensor& x_NI, const at::Tensor& weight_OI,
                                        const at::Tensor& bias_O = {});

}  // namespace isthmus::trainer
