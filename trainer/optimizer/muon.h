#pragma once
// Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024) for the matrices
// inside layers; AdamW updates embeddings, head and vectors. With g the clipped gradient and mu the momentum:
//   m = mu m + (1 - mu) g
//   u = mu m + (1 - mu) g                         (Nesterov)
//   o = u with all its singular values near 1     (five Newton-Schulz steps on u / |u|)
//   p = (1 - lr weight_decay) p - lr 0.2 sqrt(max(rows, columns)) o
// The last factor makes steps about as large as AdamW's (arXiv 2502.16982, equation 4), so that one learning
// rate and one weight decay serve both. GPT-2's matrix of a layer's queries, keys and values is treated as
// one.
//
// Products are libtorch's: local arithmetic with last bits that differ between kinds of processors, so Muon
// must not be used for agreed state (during synchronous warm-up).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "isthmus/trainer/parameter_table.h"
#include "ops/flat_ops.h"

namespace isthmus::trainer {

/// A matrix of the flat buffer, row-major.
struct MuonMatrix {
  outer_sync::Range range;
  std::int64_t rows = 0, columns = 0;
};
/// The matrices, in the buffer's order.
[[nodiscard]] std::vector<MuonMatrix> muon_matrices(const ParameterTable& table);
/// The parts of the segments that are left for AdamW.
[[nodiscard]] std::vector<DecaySegment> without(std::span<const DecaySegment> segments,
                                                std::span<const MuonMatrix> matrices);

/// Constants of one step.
struct MuonStep {
  double lr = 0, momentum = 0, weight_decay = 0, clip_scale = 1;
};
/// One step for one matrix; m is `first_moment`, and `second_moment` is unchanged. If the buffers have a
/// twin, the Newton-Schulz steps are in bf16 and the twin gets the new parameters too; else they are in fp32.
/// `gradient` is fp32 or bf16.
void muon(const MuonStep& step, const MuonMatrix& matrix, const at::Tensor& gradient,
          const flat::Buffers& buffers);

/// Approximately the nearest matrix to `u` with all singular values 1 (they are 0.7 to 1.2), by Newton-Schulz
/// steps in the type of `u`. Depends on `u` alone. Zeros stay zeros.
[[nodiscard]] at::Tensor orthogonalised(const at::Tensor& u);

}  // namespace isthmus::trainer
