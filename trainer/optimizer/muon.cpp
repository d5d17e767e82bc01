#include "optimizer/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace isthmus::trainer {

using at::Tensor;

std::vector<MuonMatrix> muon_matrices(const ParameterTable& table) {
  std::vector<MuonMatrix> matrices;
  for (const auto& tensor : table.tensors()) {
    const bool in_layer =
        tensor.name.starts_with("model.layers.") || tensor.name.starts_with("transformer.h.");
    if (in_layer && tensor.shape.size() == 2)
      matrices.push_back({tensor.range, tensor.shape[0], tensor.shape[1]});
  }
  return matrices;
}

std::vector<DecaySegment> without(std::span<const DecaySegment> segments,
                                  std::span<const MuonMatrix> matrices) {
  std::vector<DecaySegment> left;
  auto next = matrices.begin();
  for (const auto& segment : segments) {
    auto begin = segment.range.begin;
    const auto add_to = [&](std::uint64_t end) {
      if (end > begin) left.push_back({{begin, end - begin}, segment.decay});
    };
    for (; next != matrices.end() && next->range.begin < segment.range.end(); ++next) {
      add_to(next->range.begin);
      begin = next->range.end();
    }
    add_to(segment.range.end());
  }
  return left;
}

Tensor orthogonalised(const Tensor& u) {
  // A quintic that brings [0, 1] near 1 fastest, at the price of not converging (Jordan et al.).
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  constexpr int steps = 5;
  const bool tall = u.size(0) > u.size(1);
  auto x = (tall ? u.t() : u) / u.norm().clamp_min(1e-7);  // use the smaller Gram matrix
  for (int step = 0; step < steps; ++step) {
    const auto gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a);
  }
  return tall ? x.t() : x;
}

void muon(const MuonStep& step, const MuonMatrix& matrix, const Tensor& gradient,
          const flat::Buffers& buffers) {
  const auto part = [&](const Tensor& buffer) {
    return flat::part(buffer, matrix.range).view({matrix.rows, matrix.columns});
  };
  const auto g = part(gradient).to(at::kFloat) * step.clip_scale;
  auto m = part(buffers.first_moment);
  m.lerp_(g, 1 - step.momentum);
  const auto u = g.lerp(m, step.momentum);
  const auto o = orthogonalised(u.to(buffers.twin.defined() ? at::kBFloat16 : at::kFloat));
  const auto size = 0.2 * std::sqrt(static_cast<double>(std::max(matrix.rows, matrix.columns)));
  part(buffers.parameters).mul_(1 - step.lr * step.weight_decay).sub_(o, step.lr * size);
  if (buffers.twin.defined()) flat::refresh_twin(buffers.parameters, buffers.twin, matrix.range);
}

}  // namespace isthmus::trainer
