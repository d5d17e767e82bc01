#include "models/shared_sequences.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "isthmus/trainer/rank_group.h"

namespace isthmus::trainer {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

/// Sends the r-th of S parts to rank r. Its transpose is itself.
struct Exchange : Function<Exchange> {
  struct Among : torch::CustomClassHolder {
    explicit Among(RankGroup& its_group) : group(its_group) {}
    RankGroup& group;
  };

  static Tensor forward(AutogradContext* ctx, const Tensor& parts, const c10::intrusive_ptr<Among>& among) {
    ctx->saved_data["among"] = c10::IValue::make_capsule(among);
    return exchanged(parts, among->group);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto holder = ctx->saved_data["among"].toCapsule();
    return {exchanged(grads[0], static_cast<const Among&>(*holder).group), Tensor()};
  }

 private:
  static Tensor exchanged(const Tensor& parts, RankGroup& group) {
    const auto from = parts.contiguous();
    auto to = at::empty_like(from);
    group.exchange({static_cast<const std::byte*>(from.const_data_ptr()), from.nbytes()},
                   {static_cast<std::byte*>(to.mutable_data_ptr()), to.nbytes()});
    return to;
  }
};

}  // namespace

Tensor own_tokens(const AttentionShape& shape, const Tensor& x_BT) {
  if (shape.sharing == nullptr) return x_BT;
  const auto each = x_BT.size(1) / shape.sharing->ranks();
  return x_BT.narrow(1, shape.sharing->rank() * each, each);
}

// S ranks, n = T / S tokens on each, e = E / S columns of a rank's heads.
Tensor attention(const AttentionShape& shape, const Tensor& qkv_NE, const Tensor& norms_2D) {
  const auto& ops = ops_on(qkv_NE);
  if (shape.sharing == nullptr) return ops.attention(shape, qkv_NE, norms_2D);
  const auto among = c10::make_intrusive<Exchange::Among>(*shape.sharing);
  const std::int64_t ranks = shape.sharing->ranks();
  const auto each = shape.length / ranks;
  auto own = shape;
  own.heads /= ranks;
  own.kv_heads /= ranks;
  own.sharing = nullptr;

  const auto by_rank = [&](const Tensor& x_BnHD) {
    return x_BnHD.view({shape.sequences, each, ranks, -1, shape.head_dim});
  };
  const auto kinds = qkv_NE.view({shape.sequences, each, -1, shape.head_dim})
                         .split_with_sizes({shape.heads, shape.kv_heads, shape.kv_heads}, 2);
  const auto heads_BnSeD = at::cat({by_rank(kinds[0]), by_rank(kinds[1]), by_rank(kinds[2])}, 3);
  const auto tokens_SBneD = Exchange::apply(heads_BnSeD.permute({2, 0, 1, 3, 4}), among);
  const auto own_qkv = tokens_SBneD.permute({1, 0, 2, 3, 4}).reshape({shape.sequences * shape.length, -1});

  const auto y_BSnC = ops.attention(own, own_qkv, norms_2D).view({shape.sequences, ranks, each, -1});
  const auto y_SBnC = Exchange::apply(y_BSnC.permute({1, 0, 2, 3}), among);
  return y_SBnC.permute({1, 2, 0, 3}).reshape({shape.sequences * each, shape.heads * shape.head_dim});
}

}  // namespace isthmus::trainer
