#pragma once
// The decoder between token ids and the head's product, one class for each architecture, over leaves of flat
// buffers. Suffixes: B sequences, T tokens of a sequence, N = B T, C channels, E = (H + 2K) D, F
// feed-forward, V ids.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/trainer/parameter_table.h"
#include "ops/ops.h"

namespace isthmus::trainer {

/// Makes autograd leaves over ranges of the flat buffers.
struct Leaves {
  const ParameterTable& table;
  const at::Tensor& flat;
  const at::Tensor& flat_gradient;                 ///< undefined: no gradients
  std::vector<std::pair<at::Tensor, void*>>& all;  ///< each leaf with its gradient's address

  /// One leaf over tensors that are adjacent in the buffer and have equal rows.
  [[nodiscard]] at::Tensor stacked(const std::vector<std::string>& names) const;
  [[nodiscard]] at::Tensor operator()(const std::string& name) const { return stacked({name}); }
};

/// The residual stream is the sum of both. `delta` is the output of the last half layer (undefined: nothing),
/// which the next norm adds.
struct Stream {
  at::Tensor residual_NC, delta_NC;
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Positions count from the beginning of a token's document if attention is bounded by documents.
  [[nodiscard]] virtual Stream embed(const at::Tensor& tokens_BT, const at::Tensor& positions_BT) const = 0;
  [[nodiscard]] virtual Stream layer(std::size_t index, const AttentionShape& shape,
                                     const Stream& stream) const = 0;
  /// The operand of the head, [N,C].
  [[nodiscard]] virtual at::Tensor final_norm(const Stream& stream) const = 0;
  [[nodiscard]] virtual at::Tensor head_VC() const = 0;
};

[[nodiscard]] std::unique_ptr<const Decoder> make_llama(const Leaves& leaf);
[[nodiscard]] std::unique_ptr<const Decoder> make_gpt2(const Leaves& leaf);

}  // namespace isthmus::trainer
