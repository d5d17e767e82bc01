#pragma once
// A decoder over flat buffers. Used only by the libtorch sources of this folder.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "isthmus/trainer/parameter_table.h"
#include "models/decoder.h"
#include "ops/ops.h"

namespace isthmus::trainer {

struct ModelOptions {
  std::int64_t longest = 0;  ///< maximum tokens in a sequence
  std::int64_t separator =
      -1;  ///< id that ends a document; later tokens do not attend across it; -1: attention is not bounded
  bool recompute_layers = false;  ///< recompute layers in the backward pass instead of keeping their
                                  ///< activations
};

class Model {
 public:
  /// Every parameter is a leaf over `flat` (fp32 or bf16, table.buffer_size() elements). If `flat_gradient`
  /// is defined (same type and size), its gradient is a view into that: autograd adds into it in place, so
  /// addresses never change.
  Model(const ParameterTable& table, const ModelOptions& options, const at::Tensor& flat,
        const at::Tensor& flat_gradient);

  /// See Replica::share_sequences. Losses are then those of this rank's tokens.
  void share_sequences(RankGroup* group) { attention_.sharing = group; }

  /// Mean cross-entropy in nats per token, an fp32 scalar; `weights` apply to its gradient. Inputs are int64
  /// [B,T] on the model's device.
  [[nodiscard]] at::Tensor loss(const at::Tensor& inputs_BT, const at::Tensor& targets_BT,
                                LossWeights weights = {}) const;
  /// fp32 logits of the id that follows the token at index `token`: by default the last one.
  [[nodiscard]] at::Tensor next_logits(const at::Tensor& tokens_1T, std::int64_t token = -1) const;
  /// False if autograd has replaced a gradient's tensor by another one.
  [[nodiscard]] bool gradients_in_place() const;

 private:
  [[nodiscard]] at::Tensor hidden(const at::Tensor& tokens_BT) const;

  ModelOptions options_;
  std::size_t layers_;
  AttentionShape attention_;                          ///< without sequences and length
  std::vector<std::pair<at::Tensor, void*>> leaves_;  ///< each leaf with its gradient's address
  std::unique_ptr<const Decoder> decoder_;
};

}  // namespace isthmus::trainer
