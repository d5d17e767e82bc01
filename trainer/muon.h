#pragma once
// Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024) for the matrices
// inside layers; embeddings, head and vectors stay with AdamW. With g the clipped gradient and mu the
// momentum:
//   m = mu m + (1 - mu) g
//   u = mu m + (1 - mu) g                         (Nesterov)
//   o = u with all its singular values near 1     (five Newton-Schulz steps on u / |u|)
//   p = (1 - lr weight_decay) p - lr 0.2 sqrt(max(rows, columns)) o
// The last factor makes steps about as large as AdamW's (arXiv 2502.16982, equation 4), so that one learning
// rate and one weight decay serve both. GPT-2 has a layer's queries, keys and values in one matrix, which is
// taken whole.
//
// Products are libtorch's: local arithmetic, whose last bits differ from one kind of processor to another.
// Agreed state, as warm-up makes it, has to do without.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "flat_ops.h"
#include "isthmus/trainer/parameter_table.h"

namespace isthmus::trainer {

/// A matrix of the flat buffer, row-major.
struct MuonMatrix {
  outer_sync::Range range;
  std::int64_t rows = 0, columns = 0;
};
/// In the buffer's order.
[[nodiscard]] std::vector<MuonMatrix> muon_matrices(const ParameterTable& table);
/// What is left of the segments for AdamW.
[[nodiscard]] std::vector<DecaySegment> without(std::span<const DecaySegment> segments,
                                                std::span<const MuonMatrix> matrices);

/// Constants of one step.
struct MuonStep {
  double lr = 0, momentum = 0, weight_decay = 0, clip_scale = 1;
};
/// One step of one matrix; m is `first_moment`, and `second_moment` stays as it is. The Newton-Schulz steps
/// are in bf16 where the buffers have a twin, which gets the new parameters too, else in fp32. `gradient` is
/// fp32 or bf16.
void muon(const MuonStep& step, const MuonMatrix& matrix, const at::Tensor& gradient,
          const flat::Buffers& buffers);

/// The nearest matrix to `u` of which all singular values are equal, times about 1 (0.7 to 1.2): a product of
/// `u` alone, by Newton-Schulz steps in its own type. Zeros stay zeros.
[[nodiscard]] at::Tensor orthogonalised(const at::Tensor& u);

}  // namespace isthmus::trainer
