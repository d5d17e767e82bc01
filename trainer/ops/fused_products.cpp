// Matrix products and the operations around them, as one autograd node each.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kernels/cpu_kernels.h"
#include "ops/device_loops.h"
#include "ops/linear_product.h"
#include "ops/ops.h"

namespace isthmus::trainer {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace fused {
namespace {

/// Adds in fp32 and rounds once; on a GPU, libtorch's own sum takes twice as long as reading `x`.
Tensor column_sums(const Tensor& x_NC) {
#ifdef ISTHMUS_WITH_CUDA
  if (!x_NC.is_cpu()) {
    const auto wide = x_NC.options().dtype(at::kFloat);
    const auto sums_C = at::empty({x_NC.size(1)}, wide);
    const auto block_sums = at::empty({cuda::row_blocks(x_NC.size(0)), x_NC.size(1)}, wide);
    dispatch(x_NC, [&](auto type) {
      using T = decltype(type);
      cuda::run(
          cpu::ColumnSums<T>{x_NC.size(0), x_NC.size(1), data<T>(x_NC), floats(sums_C), floats(block_sums)},
          stream_of(x_NC));
    });
    return sums_C.to(x_NC.scalar_type());
  }
#endif
  return x_NC.sum(0);
}

/// A node's `Product`, in its forward and in its backward pass.
struct Kept {
  Product by;
  [[nodiscard]] Tensor times(const Tensor& x) const {
    return linear_product(x, by.input_first ? by.weight.t() : by.weight, by.bias);
  }
  /// Gradient of the product's input.
  [[nodiscard]] Tensor back(const Tensor& grad) const {
    return linear_product(grad, by.input_first ? by.weight : by.weight.t());
  }
  /// Gradients of weight and bias, for the input `x`. A gradient is undefined if there is no bias, or if it
  /// was added to the weight's own in place, as for a leaf.
  [[nodiscard]] std::pair<Tensor, Tensor> of_parameters(const Tensor& x, const Tensor& grad) const {
    const auto left = by.input_first ? x.t() : grad.t();
    const auto& right = by.input_first ? grad : x;
    const auto bias = by.input_first ? column_sums(grad) : Tensor();
    auto& so_far = by.weight.mutable_grad();
    if (!so_far.defined()) return {at::mm(left, right), bias};
    so_far.addmm_(left, right);
    return {Tensor(), bias};
  }
};

/// A product's tensors for autograd, which does not take undefined ones.
Tensor bias_of(const Product& by) { return by.input_first ? by.bias : at::empty({0}, by.weight.options()); }
Product product_of(const Tensor& weight, const Tensor& bias) {
  const bool input_first = bias.numel() > 0;
  return {weight, input_first ? bias : Tensor(), input_first};
}

struct Linear : Function<Linear> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_NI, const Tensor& weight, const Tensor& bias) {
    ctx->save_for_backward({x_NI, weight, bias});
    return Kept{product_of(weight, bias)}.times(x_NI);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const Kept kept{product_of(saved[1], saved[2])};
    const auto grad = grads[0].contiguous();
    const auto [weight_grad, bias_grad] = kept.of_parameters(saved[0], grad);
    return {kept.back(grad), weight_grad, bias_grad};
  }
};

/// Results of an activation's backward pass: the gradient of its input, and its output again.
struct GradientAndOut {
  Tensor gradient, out;
};

struct SwigluActivation {
  static Tensor forward(const Tensor& gate_up) {
    const auto out = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
    dispatch(gate_up, [&](auto type) {
      using T = decltype(type);
      run_on(out, cpu::SwiGlu<T>{out.size(0), out.size(1), data<T>(gate_up), data<T>(out)});
    });
    return out;
  }
  static GradientAndOut backward(const Tensor& gate_up, const Tensor& grad) {
    const auto grad_gate_up = at::empty_like(gate_up), out = at::empty_like(grad);
    dispatch(gate_up, [&](auto type) {
      using T = decltype(type);
      run_on(grad, cpu::SwiGluBackward<T>{grad.size(0), grad.size(1), data<T>(gate_up), data<T>(grad),
                                          data<T>(grad_gate_up), data<T>(out)});
    });
    return {grad_gate_up, out};
  }
};

struct GeluActivation {
  static Tensor forward(const Tensor& x) {
    auto out = at::empty_like(x);
    dispatch(x, [&](auto type) {
      using T = decltype(type);
      run_on(x, cpu::Gelu<T>{x.size(0), x.size(1), data<T>(x), data<T>(out)});
    });
    return out;
  }
  static GradientAndOut backward(const Tensor& x, const Tensor& grad) {
    const auto out = at::empty_like(x);
    dispatch(x, [&](auto type) {
      using T = decltype(type);
      run_on(x, cpu::GeluBackward<T>{x.size(0), x.size(1), data<T>(x), data<T>(grad), data<T>(grad),
                                     data<T>(out)});
    });
    return {grad, out};
  }
};

template <class Activation>
struct Activated : Function<Activated<Activation>> {
  static Tensor forward(AutogradContext* ctx, const Tensor& in, const Tensor& weight, const Tensor& bias) {
    const auto x = in.contiguous();
    ctx->save_for_backward({x, weight, bias});
    return Kept{product_of(weight, bias)}.times(Activation::forward(x));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const Kept kept{product_of(saved[1], saved[2])};
    const auto grad = grads[0].contiguous();
    const auto back = Activation::backward(saved[0], kept.back(grad));
    const auto [weight_grad, bias_grad] = kept.of_parameters(back.out, grad);
    return {back.gradient, weight_grad, bias_grad};
  }
};

/// The logits are the largest tensor of the model, so they are computed for a few rows at a time, and turned
/// into their own gradient at once.
struct HeadLoss : Function<HeadLoss> {
  /// In elements: a core's caches are small, a GPU needs large products.
  static std::int64_t logits_at_once(const Tensor& h) { return h.is_cpu() ? 1 << 22 : 1 << 30; }
  /// Tensor cores need rows at multiples of 16 bytes, and are fastest at larger multiples.
  static std::int64_t padded(const Tensor& h, std::int64_t vocab) {
    constexpr std::int64_t together = 64;
    return h.is_cpu() ? vocab : (vocab + together - 1) / together * together;
  }
  /// Lower bound, since each part reads the matrix and updates its gradient.
  static constexpr std::int64_t min_rows_at_once = 256;

  static Tensor forward(AutogradContext* ctx, const Tensor& h_NC, const Tensor& weight_VC,
                        const Tensor& targets_N, const LossWeights& weights, bool with_gradient) {
    const auto h = h_NC.contiguous();
    const auto rows = h.size(0);
    const auto vocab = weight_VC.size(0);
    // The padding behind the vocabulary is zero, and so are its products and gradients.
    const auto weight = padded(h, vocab) == vocab
                            ? weight_VC
                            : at::constant_pad_nd(weight_VC, {0, 0, 0, padded(h, vocab) - vocab});
    const auto rows_at_once = std::min(rows, std::max(min_rows_at_once, logits_at_once(h) / vocab));
    const auto grad_h = with_gradient ? at::empty_like(h) : Tensor();
    // If there are several parts, they are added in fp32.
    const auto& so_far = weight_VC.grad();
    const bool at_once = with_gradient && so_far.defined() && so_far.scalar_type() == at::kFloat;
    auto grad_weight = at_once ? so_far : Tensor();
    auto loss = at::zeros({}, h.options().dtype(at::kDouble));
    for (std::int64_t row = 0; row < rows; row += rows_at_once) {
      const auto n = std::min(rows_at_once, rows - row);
      const auto h_part = h.narrow(0, row, n);
      const auto logits = linear_product(h_part, weight);
      loss += softmax_loss(logits, vocab, targets_N.narrow(0, row, n),
                           weights.loss / static_cast<double>(rows), weights.z_loss);
      if (!with_gradient) continue;
      grad_h.narrow(0, row, n).copy_(linear_product(logits, weight.t()));
      const auto logits_VN = logits.t().narrow(0, 0, vocab);
      if (!grad_weight.defined()) {
        grad_weight = at::mm(logits_VN, h_part);
        if (n < rows) grad_weight = grad_weight.to(at::kFloat);
      } else if (h.scalar_type() == at::kFloat) {
        grad_weight.addmm_(logits_VN, h_part);
      } else {
        grad_weight.add_(at::mm(logits_VN, h_part));
      }
    }
    if (with_gradient) ctx->save_for_backward({grad_h, at_once ? Tensor() : grad_weight.to(h.scalar_type())});
    return (loss / rows).to(at::kFloat);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list&) {
    const auto saved = ctx->get_saved_variables();
    return {saved[0], saved[1], Tensor(), Tensor(), Tensor()};
  }

 private:
  /// Returns a double scalar; on a GPU without waiting for it. `logits` may be wider than the vocabulary.
  static Tensor softmax_loss(const Tensor& logits, std::int64_t vocab, const Tensor& targets_N, double scale,
                             double z_loss) {
    return dispatch(logits, [&](auto type) {
      using T = decltype(type);
      const cpu::SoftmaxLoss<T> work{.rows = logits.size(0),
                                     .vocab = vocab,
                                     .scale = static_cast<float>(scale),
                                     .z_loss = static_cast<float>(z_loss),
                                     .logits = data<T>(logits),
                                     .targets_N = data<std::int64_t>(targets_N),
                                     .stride = logits.size(1)};
#ifdef ISTHMUS_WITH_CUDA
      if (!logits.is_cpu()) {
        const auto losses_N = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
        cuda::run(work, floats(losses_N), stream_of(logits));
        return losses_N.sum(at::kDouble);
      }
#endif
      return at::scalar_tensor(cpu::softmax_loss(work), at::kDouble);
    });
  }
};

}  // namespace

Tensor product(const Tensor& x_NI, const Product& by) { return Linear::apply(x_NI, by.weight, bias_of(by)); }

Tensor swiglu_product(const Tensor& gate_up_N2F, const Product& by) {
  return Activated<SwigluActivation>::apply(gate_up_N2F, by.weight, bias_of(by));
}

Tensor gelu_product(const Tensor& x_NF, const Product& by) {
  return Activated<GeluActivation>::apply(x_NF, by.weight, bias_of(by));
}

Tensor head_loss(const Tensor& h_NC, const Tensor& weight_VC, const Tensor& targets_N, LossWeights weights) {
  const bool with_gradient =
      at::GradMode::is_enabled() && (h_NC.requires_grad() || weight_VC.requires_grad());
  return HeadLoss::apply(h_NC, weight_VC, targets_N, weights, with_gradient);
}

}  // namespace fused
}  // namespace isthmus::trainer
