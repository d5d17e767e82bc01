#include "kernels/rows.h"

namespace isthmus::trainer::cpu {
namespace {

template <class T>
ISTHMUS_INLINE double rows(const SoftmaxLoss<T>& a, Index begin, Index end, Scratch& scratch) {
  const Index n = a.vocab;
  double loss = 0;
  for (Index row = begin; row < end; ++row) {
    T* logits = a.logits + row * n;
    const auto target = a.targets_N[row];
    const float* z = widened(logits, n, scratch.row(0));
    const float top = largest(z, n);
    const float target_logit = z[target];
    float* weights = room(logits, scratch.row(0));
    for (Index i = 0; i < n; ++i) weights[i] = exponential(z[i] - top);
    const float total = sum(weights, n);
    const double log_total = std::log(static_cast<double>(total));
    loss += log_total - static_cast<double>(target_logit - top);
    const float factor = a.scale / total;
    const float pull = 1.0F + 2.0F * a.z_loss * static_cast<float>(log_total + static_cast<double>(top));
    const float target_gradient = (weights[target] * pull - total) * factor;
    for (Index i = 0; i < n; ++i) weights[i] *= factor * pull;
    weights[target] = target_gradient;
    put(weights, n, logits);
  }
  return loss;
}

ISTHMUS_RUN_ROWS(double, SoftmaxLoss<float>)
ISTHMUS_RUN_ROWS(double, SoftmaxLoss<Bf16>)

template <class T>
double loss_of(const SoftmaxLoss<T>& a) {
  std::vector<double> losses(static_cast<std::size_t>((a.rows + row_block - 1) / row_block));
  by_blocks(a.rows, a.vocab, [&](Index block, Index begin, Index end) {
    Scratch scratch(1, a.vocab);
    losses[static_cast<std::size_t>(block)] = run_rows(a, begin, end, scratch);
  });
  double loss = 0;
  for (const double part : losses) loss += part;
  return loss;
}

}  // namespace

double softmax_loss(const SoftmaxLoss<float>& a) { return loss_of(a); }
double softmax_loss(const SoftmaxLoss<Bf16>& a) { return loss_of(a); }

}  // namespace isthmus::trainer::cpu
