#include "models/model.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "models/shared_sequences.h"

namespace isthmus::trainer {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

Tensor Leaves::stacked(const std::vector<std::string>& names) const {
  const auto& first = table.tensor(names.front());
  auto shape = first.shape;
  shape[0] = 0;
  auto end = first.range.begin;
  for (const auto& name : names) {
    const auto& entry = table.tensor(name);
    TORCH_CHECK(entry.range.begin == end, name, " does not follow its neighbour in the buffer");
    shape[0] += entry.shape[0];
    end = entry.range.end();
  }
  const auto view = [&](const Tensor& buffer) {
    const auto begin = static_cast<std::int64_t>(first.range.begin);
    return buffer.detach().narrow(0, begin, static_cast<std::int64_t>(end) - begin).view(shape).detach();
  };
  auto leaf = view(flat);
  if (flat_gradient.defined()) {
    leaf.set_requires_grad(true);
    leaf.mutable_grad() = view(flat_gradient);
    all.emplace_back(leaf, leaf.grad().data_ptr());
  }
  return leaf;
}

namespace {

/// cos and sin of position * theta^(-2i/D), [T, D/2]. Local arithmetic, so the C library's cosine is good
/// enough.
std::pair<Tensor, Tensor> rotations(const ModelConfig& config, std::int64_t longest,
                                    const at::TensorOptions& options) {
  const auto half = config.head_dim() / 2;
  const auto index = at::arange(half, at::kDouble) * (-1.0 / static_cast<double>(half));
  const auto angles = at::outer(at::arange(longest, at::kDouble), at::pow(config.rope_theta, index));
  const auto fp32 = options.dtype(at::kFloat);
  return {angles.cos().to(fp32), angles.sin().to(fp32)};
}

/// A layer that keeps only its input for the backward pass, and recomputes the rest there: activation
/// checkpointing (arXiv 1604.06174). Gradients are bit-identical to those without it.
struct RecomputedLayer : Function<RecomputedLayer> {
  struct Call : torch::CustomClassHolder {
    Call(const Decoder& its_decoder, std::size_t its_index, AttentionShape its_shape)
        : decoder(its_decoder), index(its_index), shape(std::move(its_shape)) {}
    const Decoder& decoder;
    std::size_t index;
    AttentionShape shape;
  };

  /// `delta_NC` is nullopt if it is undefined: autograd does not take undefined tensors.
  static variable_list forward(AutogradContext* ctx, const Tensor& residual_NC,
                               const std::optional<Tensor>& delta_NC, const c10::intrusive_ptr<Call>& call) {
    const Stream in{residual_NC, delta_NC.value_or(Tensor())};
    ctx->save_for_backward({in.residual_NC, in.delta_NC});
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    const auto out = call->decoder.layer(call->index, call->shape, in);
    return {out.residual_NC, out.delta_NC};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto holder = ctx->saved_data["call"].toCapsule();
    const auto& call = static_cast<const Call&>(*holder);
    const auto leaf = [](const Tensor& x) { return x.defined() ? x.detach().requires_grad_() : x; };
    const Stream in{leaf(saved[0]), leaf(saved[1])};
    const at::AutoGradMode with_graph(true);
    const auto out = call.decoder.layer(call.index, call.shape, in);
    torch::autograd::backward({out.residual_NC, out.delta_NC}, grads);
    return {in.residual_NC.grad(), in.delta_NC.defined() ? in.delta_NC.grad() : Tensor(), Tensor()};
  }
};

}  // namespace

Model::Model(const ParameterTable& table, const ModelOptions& options, const Tensor& flat,
             const Tensor& flat_gradient)
    : options_(options), layers_(static_cast<std::size_t>(table.model().config.layers)) {
  const auto& config = table.model().config;
  const Leaves leaf{table, flat, flat_gradient, leaves_};
  decoder_ = config.is_gpt2() ? make_gpt2(leaf) : make_llama(leaf);
  attention_ = {.heads = config.heads,
                .kv_heads = config.kv_heads,
                .head_dim = config.head_dim(),
                .norm_eps = config.norm_eps,
                .cos_TD2 = {},
                .sin_TD2 = {},
                .begins_BT = {}};
  if (!config.is_gpt2())
    std::tie(attention_.cos_TD2, attention_.sin_TD2) = rotations(config, options.longest, flat.options());
}

Tensor Model::hidden(const Tensor& tokens_BT) const {
  auto shape = attention_;
  shape.sequences = tokens_BT.size(0);
  shape.length = tokens_BT.size(1);
  if (options_.separator >= 0) shape.begins_BT = document_begins(tokens_BT, options_.separator);

  auto positions_BT = at::arange(shape.length, tokens_BT.options()).expand_as(tokens_BT);
  if (shape.begins_BT.defined()) positions_BT = positions_BT - shape.begins_BT;
  auto stream = decoder_->embed(own_tokens(shape, tokens_BT), own_tokens(shape, positions_BT));
  for (std::size_t l = 0; l < layers_; ++l) {
    if (options_.recompute_layers && at::GradMode::is_enabled()) {
      const auto call = c10::make_intrusive<RecomputedLayer::Call>(*decoder_, l, shape);
      const auto delta_NC = stream.delta_NC.defined() ? std::optional(stream.delta_NC) : std::nullopt;
      const auto out = RecomputedLayer::apply(stream.residual_NC, delta_NC, call);
      stream = {out[0], out[1]};
    } else {
      stream = decoder_->layer(l, shape, stream);
    }
  }
  return decoder_->final_norm(stream);
}

Tensor Model::loss(const Tensor& inputs_BT, const Tensor& targets_BT, LossWeights weights) const {
  const auto targets_N = own_tokens(attention_, targets_BT).reshape({-1});
  return fused::head_loss(hidden(inputs_BT), decoder_->head_VC(), targets_N, weights);
}

Tensor Model::next_logits(const Tensor& tokens_1T, std::int64_t token) const {
  return at::linear(hidden(tokens_1T).narrow(0, token, 1), decoder_->head_VC()).to(at::kFloat).view({-1});
}

bool Model::gradients_in_place() const {
  return std::all_of(leaves_.begin(), leaves_.end(), [](const auto& leaf) {
    return leaf.first.grad().defined() && leaf.first.grad().data_ptr() == leaf.second;
  });
}

}  // namespace isthmus::trainer
