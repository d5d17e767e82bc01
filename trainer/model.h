#pragma once
// A decoder over flat buffers. Known to the libtorch sources of this folder only.
// Suffixes: B sequences, T tokens of a sequence, N = B T, C channels, V ids.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "decoder.h"
#include "isthmus/trainer/parameter_table.h"
#include "ops.h"

namespace isthmus::trainer {

struct ModelOptions {
  std::int64_t longest = 0;  ///< sequences up to so many tokens
  std::int64_t separator =
      -1;  ///< id that ends a document, before which nothing behind it looks; -1: none does
  bool recompute_layers = false;  ///< in the backward pass, in place of keeping what is in them
};

class Model {
 public:
  /// Every parameter is a leaf whose storage is a view into `flat` (fp32 or bf16, table.buffer_size()
  /// elements) and whose gradient, if `flat_gradient` is defined (same type and size), a view into that:
  /// autograd adds into it in place, so addresses never change.
  Model(const ParameterTable& table, const ModelOptions& options, const at::Tensor& flat,
        const at::Tensor& flat_gradient);

  /// Mean cross-entropy in nats per token, fp32 scalar, whose gradient is as `weights` say. int64 [B,T] on
  /// the model's device.
  [[nodiscard]] at::Tensor loss(const at::Tensor& inputs_BT, const at::Tensor& targets_BT,
                                LossWeights weights = {}) const;
  /// fp32 logits of the id that follows `token`: by default the last one.
  [[nodiscard]] at::Tensor next_logits(const at::Tensor& tokens_1T, std::int64_t token = -1) const;
  /// False if autograd has replaced a gradient by a tensor of its own.
  [[nodiscard]] bool gradients_in_place() const;

 private:
  [[nodiscard]] at::Tensor hidden(const at::Tensor& tokens_BT) const;

  ModelOptions options_;
  std::size_t layers_;
  AttentionShape attention_;                          ///< without sequences and length
  std::vector<std::pair<at::Tensor, void*>> leaves_;  ///< with the address of the gradient
  std::unique_ptr<const Decoder> decoder_;
};

}  // namespace isthmus::trainer
