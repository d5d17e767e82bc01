#pragma once
// Sequence parallelism as in DeepSpeed-Ulysses (Jacobs et al., arXiv 2309.14509): each of S ranks has T / S
// tokens of every sequence, in the order of the ranks. Only attention needs the others': there an all-to-all
// exchanges tokens for heads, so that a rank has all tokens of H / S heads, and a second one reverses it. The
// backward pass does the same with gradients. Used by the architectures, on the thread that trains.

#include <ATen/core/Tensor.h>

#include "ops/ops.h"

namespace isthmus::trainer {

/// This rank's part of the tokens of each sequence; all of them if they are not shared.
[[nodiscard]] at::Tensor own_tokens(const AttentionShape& shape, const at::Tensor& x_BT);

/// Ops::attention on this rank's tokens. `shape` has the whole sequences' length and all heads.
[[nodiscard]] at::Tensor attention(const AttentionShape& shape, const at::Tensor& qkv_NE,
                                   const at::Tensor& norms_2D);

}  // namespace isthmus::trainer
