#pragma once
// A Llama-style decoder over flat buffers. Known to the libtorch sources of this folder only.
// Suffixes: B sequences, T tokens of a sequence, N = B T, C channels, V ids.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "isthmus/trainer/parameter_table.h"
#include "ops.h"

namespace isthmus::trainer {

class Model {
 public:
  /// Every parameter is a leaf whose storage is a view into `flat` (fp32 or bf16, table.buffer_size()
  /// elements) and whose gradient, if `flat_gradient` is defined (same type and size), a view into that:
  /// autograd adds into it in place, so addresses never change. Sequences up to `longest` tokens.
  /// Tokens attend to what stands before them in their document, where `separator` (an id, or -1: there is
  /// none) ends one, else to all before them.
  Model(const ParameterTable& table, std::int64_t longest, const at::Tensor& flat,
        const at::Tensor& flat_gradient, std::int64_t separator = -1);

  /// Mean cross-entropy in nats per token, fp32 scalar. int64 [B,T] on the model's device.
  [[nodiscard]] at::Tensor loss(const at::Tensor& inputs_BT, const at::Tensor& targets_BT) const;
  /// fp32 logits of the id that follows the last token.
  [[nodiscard]] at::Tensor next_logits(const at::Tensor& tokens_1T) const;
  /// False if autograd has replaced a gradient by a tensor of its own.
  [[nodiscard]] bool gradients_in_place() const;

 private:
  struct Layer {
    at::Tensor input_norm_C, qkv_EC, qk_norms_2D, o_CC;
    at::Tensor post_norm_C, gate_up_2FC, down_CF;
  };
  [[nodiscard]] at::Tensor hidden(const at::Tensor& tokens_BT) const;

  ModelConfig config_;
  std::int64_t separator_;
  AttentionShape attention_;  ///< without sequences and length
  std::vector<Layer> layers_;
  at::Tensor embedding_VC, head_VC, final_norm_C;
  std::vector<std::pair<at::Tensor, void*>> leaves_;  ///< with the address of the gradient
};

}  // namespace isthmus::trainer
