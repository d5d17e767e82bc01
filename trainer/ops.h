#pragma once
// The parts of the decoder that are not one matrix product, each in two forms with one meaning: `plain`,
// composed of ATen's functions, on any device; `fused`, one autograd node each over loops of our own, those
// of cpu_kernels.h on a CPU and those of cuda/decoder_kernels.h on a GPU, which has them of norms,
// activations and the loss. The plain forms are also what the tests hold the fused ones against.
//
// Suffixes: N tokens (sequence-major), C channels, F feed-forward channels, D elements of a head, V ids.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace isthmus::trainer {

/// An attention layer's geometry; cos_TD2 and sin_TD2 are fp32 [longest T, D/2], undefined for no rotation.
/// begins_BT, int32, is the first position that each one attends to: its document's; undefined for 0.
struct AttentionShape {
  std::int64_t sequences = 0, length = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  double norm_eps = 0;
  at::Tensor cos_TD2, sin_TD2, begins_BT;
};

/// Where each token's document begins in its row: behind the last `separator` before it. int32 [B,T].
at::Tensor document_begins(const at::Tensor& tokens_BT, std::int64_t separator);

/// A loss's part in what is minimised, and z-loss in it (`inner.z_loss`).
struct LossWeights {
  double loss = 1, z_loss = 0;
};

/// A matrix of a layer and what is added to its products.
struct Product {
  at::Tensor weight;         ///< [out, in], or [in, out] where `input_first`
  at::Tensor bias = {};      ///< [out], `input_first` alone; else undefined
  bool input_first = false;  ///< as GPT-2's checkpoints have it
};

namespace plain {
at::Tensor embed(const at::Tensor& weight_VC, const at::Tensor& tokens_N);
/// (x + delta, RMSNorm of it times weight); delta may be undefined.
std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x_NC, const at::Tensor& delta_NC,
                                           const at::Tensor& weight_C, double eps);
/// (x + delta, LayerNorm of it with the weight and the bias that stand in affine_2C one behind the other).
std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x_NC, const at::Tensor& delta_NC,
                                                 const at::Tensor& affine_2C, double eps);
/// Causal attention on qkv_NE, E = (H + 2K) D, with rotary positions. norms_2D are the weights of the
/// RMSNorms of queries and of keys, one behind the other; empty for none. Returns N x (H D).
at::Tensor attention(const AttentionShape& shape, const at::Tensor& qkv_NE, const at::Tensor& norms_2D);
/// Its last part, on heads that are normed and rotated. Dense or not.
at::Tensor attend(const AttentionShape& shape, const at::Tensor& q_BHTD, const at::Tensor& k_BKTD,
                  const at::Tensor& v_BKTD);
/// x W^T, or x W + b.
at::Tensor product(const at::Tensor& x_NI, const Product& by);
/// The product of silu(first half) * second half.
at::Tensor swiglu_product(const at::Tensor& gate_up_N2F, const Product& by);
/// The product of GELU in its tanh form.
at::Tensor gelu_product(const at::Tensor& x_NF, const Product& by);
/// Sum of the rows' cross-entropies, double; the logits become the gradient of that with z-loss, times
/// `scale`.
at::Tensor softmax_loss(const at::Tensor& logits_NV, const at::Tensor& targets_N, double scale,
                        double z_loss = 0);
}  // namespace plain

namespace fused {
at::Tensor embed(const at::Tensor& weight_VC, const at::Tensor& tokens_N);
std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x_NC, const at::Tensor& delta_NC,
                                           const at::Tensor& weight_C, double eps);
std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x_NC, const at::Tensor& delta_NC,
                                                 const at::Tensor& affine_2C, double eps);
/// By the weights of all heads, sequences * heads * length^2 elements: on a CPU, at 32 x 4 x 128^2 in bf16,
/// forward and backward take 5 ms where ATen's flash attention takes 33 ms. They are kept for the backward
/// pass where length <= 4 head_dim; where they would be most of what is kept they are made again there. In
/// fp32, from 256 tokens on, it is ATen's flash attention where that can do it (no shared keys, no
/// documents); above 2^26 elements it is `plain`'s.
at::Tensor attention(const AttentionShape& shape, const at::Tensor& qkv_NE, const at::Tensor& norms_2D);
/// On a GPU: norms, rotation and the split into heads are one pass each way, attention is libtorch's.
at::Tensor gpu_attention(const AttentionShape& shape, const at::Tensor& qkv_NE, const at::Tensor& norms_2D);
/// The gradient of a weight that has one already is added to it within the product (a temporary of the
/// matrix's size, and two passes over it, less).
at::Tensor product(const at::Tensor& x_NI, const Product& by);
/// What goes into the activation is kept for the backward pass, and what comes out of it made again there.
at::Tensor swiglu_product(const at::Tensor& gate_up_N2F, const Product& by);
at::Tensor gelu_product(const at::Tensor& x_NF, const Product& by);
/// Mean cross-entropy of h W^T against the targets, in nats, fp32. Its gradient is that of the mean as
/// `weights` say. It must be the root of the graph: its backward pass expects the gradient 1, and an fp32
/// weight that has a gradient already gets its own in the forward pass.
at::Tensor head_loss(const at::Tensor& h_NC, const at::Tensor& weight_VC, const at::Tensor& targets_N,
                     LossWeights weights = {});
}  // namespace fused

/// One form of each of those that have two.
struct Ops {
  decltype(&plain::embed) embed;
  decltype(&plain::add_norm) add_norm;
  decltype(&plain::add_layer_norm) add_layer_norm;
  decltype(&plain::attention) attention;
  decltype(&plain::product) product;
  decltype(&plain::swiglu_product) swiglu_product;
  decltype(&plain::gelu_product) gelu_product;
};
/// The form for the device on which `x` lies.
[[nodiscard]] const Ops& ops_on(const at::Tensor& x);

}  // namespace isthmus::trainer
