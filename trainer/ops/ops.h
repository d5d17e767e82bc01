#pragma once
// The parts of the decoder, each in two forms with the same meaning: `plain`, composed of ATen's functions,
// on any device; `fused`, one autograd node each over our own loops, those of cpu_kernels.h on a CPU and
// those of cuda/decoder_kernels.h on a GPU (norms, activations and the loss). Tests compare the fused forms
// with the plain ones.
//
// Suffixes: N tokens (sequence-major), C channels, F feed-forward channels, D elements of a head, V ids.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace isthmus::trainer {

class RankGroup;

/// An attention layer's geometry. cos_TD2 and sin_TD2 are fp32 [longest T, D/2]; undefined: no rotation.
/// begins_BT, int32, is the first position that each token attends to, where its document begins; undefined:
/// 0.
struct AttentionShape {
  std::int64_t sequences = 0, length = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  double norm_eps = 0;
  at::Tensor cos_TD2, sin_TD2, begins_BT;
  RankGroup* sharing = nullptr;  ///< ranks that share each sequence (models/shared_sequences.h)
};

/// Where each token's document begins in its row: after the last `separator` before it. int32 [B,T].
at::Tensor document_begins(const at::Tensor& tokens_BT, std::int64_t separator);

/// The weights of the loss in the minimised value, and of the z-loss in it (`inner.z_loss`).
struct LossWeights {
  double loss = 1, z_loss = 0;
};

/// A matrix of a layer, and the bias that is added to its products.
struct Product {
  at::Tensor weight;         ///< [out, in], or [in, out] if `input_first`
  at::Tensor bias = {};      ///< [out], only with `input_first`; else undefined
  bool input_first = false;  ///< as GPT-2's checkpoints have it
};

namespace plain {
at::Tensor embed(const at::Tensor& weight_VC, const at::Tensor& tokens_N);
/// (x + delta, RMSNorm of it times weight); delta may be undefined.
std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x_NC, const at::Tensor& delta_NC,
                                           const at::Tensor& weight_C, double eps);
/// (x + delta, LayerNorm of it); affine_2C is the weight, followed by the bias.
std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x_NC, const at::Tensor& delta_NC,
                                                 const at::Tensor& affine_2C, double eps);
/// Causal attention on qkv_NE, E = (H + 2K) D, with rotary positions. norms_2D are the weights of the
/// RMSNorms of queries, then of keys; empty: no norms. Returns N x (H D).
at::Tensor attention(const AttentionShape& shape, const at::Tensor& qkv_NE, const at::Tensor& norms_2D);
/// The last part of attention(), on heads that are normed and rotated, dense or not.
at::Tensor attend(const AttentionShape& shape, const at::Tensor& q_BHTD, const at::Tensor& k_BKTD,
                  const at::Tensor& v_BKTD);
/// x W^T, or x W + b.
at::Tensor product(const at::Tensor& x_NI, const Product& by);
/// The product of silu(first half) * second half.
at::Tensor swiglu_product(const at::Tensor& gate_up_N2F, const Product& by);
/// The product of GELU of `x`, in its tanh form.
at::Tensor gelu_product(const at::Tensor& x_NF, const Product& by);
/// Returns the sum of the rows' cross-entropies as a double; the logits become `scale` times the gradient of
/// that with z-loss.
at::Tensor softmax_loss(const at::Tensor& logits_NV, const at::Tensor& targets_N, double scale,
                        double z_loss = 0);
}  // namespace plain

namespace fused {
at::Tensor embed(const at::Tensor& weight_VC, const at::Tensor& tokens_N);
std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x_NC, const at::Tensor& delta_NC,
                                           const at::Tensor& weight_C, double eps);
std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x_NC, const at::Tensor& delta_NC,
                                                 const at::Tensor& affine_2C, double eps);
/// Computes the weights of all heads, sequences * heads * length^2 elements, which on a CPU in bf16 is faster
/// than ATen's flash attention. The weights are kept for the backward pass if length <= 4 head_dim; longer
/// ones would be most of what is kept, and are recomputed. In fp32, from 256 tokens on, uses ATen's flash
/// attention if that supports the shape (no shared keys, no documents); above 2^26 elements uses `plain`'s
/// form. Documents are computed one by one (document_spans.h): their weights are recomputed, and only
/// documents that are larger than that use `plain`'s form.
at::Tensor attention(const AttentionShape& shape, const at::Tensor& qkv_NE, const at::Tensor& norms_2D);
/// On a GPU: norms, rotation and the split into heads are one pass each way; attention is libtorch's.
at::Tensor gpu_attention(const AttentionShape& shape, const at::Tensor& qkv_NE, const at::Tensor& norms_2D);
/// If the weight has a gradient already, its new gradient is added within the product, which saves a
/// temporary of the matrix's size and two passes over it.
at::Tensor product(const at::Tensor& x_NI, const Product& by);
/// The activation's input is kept for the backward pass, and its output recomputed there.
at::Tensor swiglu_product(const at::Tensor& gate_up_N2F, const Product& by);
at::Tensor gelu_product(const at::Tensor& x_NF, const Product& by);
/// Mean cross-entropy of h W^T against the targets, in nats, fp32; `weights` apply to its gradient. Must be
/// the root of the graph: its backward pass expects the gradient 1, and an fp32 weight that has a gradient
/// already gets its own in the forward pass.
at::Tensor head_loss(const at::Tensor& h_NC, const at::Tensor& weight_VC, const at::Tensor& targets_N,
                     LossWeights weights = {});
}  // namespace fused

/// One form of each operation that has two.
struct Ops {
  decltype(&plain::embed) embed;
  decltype(&plain::add_norm) add_norm;
  decltype(&plain::add_layer_norm) add_layer_norm;
  decltype(&plain::attention) attention;
  decltype(&plain::product) product;
  decltype(&plain::swiglu_product) swiglu_product;
  decltype(&plain::gelu_product) gelu_product;
};
/// The form for the device that has `x`.
[[nodiscard]] const Ops& ops_on(const at::Tensor& x);

}  // namespace isthmus::trainer
