// The decoder's element-wise parts on a GPU; cpu_kernels.h defines what each computes. Arithmetic is fp32 for
// every storage type. A block of threads has a row (a warp has one, for norms of few columns and for heads),
// and each thread has the same columns of every row: groups of four neighbours, `stride` elements apart. Sums
// are added in a fixed order, so results are repeatable to the bit.
//
// Included by decoder_kernels.cu, and by a test that runs the kernels' threads one after another on the CPU.
// Intentionally without an include guard.

// In this order.
#include "cuda/threads-inl.h"

#include "cuda/norm_kernels-inl.h"

#include "cuda/head_kernels-inl.h"

#include "cuda/activation_kernels-inl.h"

// ---- launches ----
// launch(blocks, kernel, arguments...) starts at most `blocks` blocks of threads.

/// Calls `run` with the number of groups of columns that a warp for each row needs; false if the row is too
/// wide.
template <int groups = 2, class Run>
bool by_warp(Index channels, const Run& run) {
  if (channels <= groups * warp_stride) {
    run(std::integral_constant<int, groups>());
    return true;
  }
  if constexpr (groups * warp_stride < max_warp_columns) return by_warp<groups + 2>(channels, run);
  return false;
}

template <class T, class Launch>
void run_norm(const NormRows<T>& a, const Launch& launch) {
  const bool dense = is_dense<T>(a.channels, {a.x, a.delta, a.weight, a.bias, a.sum, a.out});
  const bool done = dense && by_warp(a.channels, [&](auto groups) {
                      launch((a.rows + warps - 1) / warps, norm_rows_by_warp<T, groups>, a);
                    });
  if (!done) launch(a.rows, norm_rows<T>, a);
}
template <class T, class Launch>
void run(const cpu::AddNorm<T>& a, const Launch& launch) {
  run_norm(NormRows<T>{a.rows, a.channels, a.eps, a.x, a.delta, a.weight_C, nullptr, a.sum, a.out, nullptr,
                       a.rstd_N},
           launch);
}
template <class T, class Launch>
void run(const cpu::AddLayerNorm<T>& a, const Launch& launch) {
  run_norm(NormRows<T>{a.rows, a.channels, a.eps, a.x, a.delta, a.affine_2C, a.affine_2C + a.channels, a.sum,
                       a.out, a.mean_N, a.rstd_N},
           launch);
}

template <class Launch>
void run_sum_columns(const float* rows, Index count, Index width, float* out, const Launch& launch) {
  launch((width + warp_size - 1) / warp_size, sum_columns, rows, count, width, out);
}
template <class T, class Launch>
void run(const cpu::ColumnSums<T>& a, const Launch& launch) {
  const Index blocks = (a.rows + rows_at_once - 1) / rows_at_once;
  const Index tiles = blocks * ((a.width + warp_stride - 1) / warp_stride);
  if (is_dense<T>(a.width, {a.x}))
    launch(tiles, sum_row_blocks<T, true>, a);
  else
    launch(tiles, sum_row_blocks<T, false>, a);
  run_sum_columns(a.block_sums, blocks, a.width, a.sums, launch);
}

/// Calls `run` with the number of lanes for a head of `head_dim` elements.
template <int lanes = max_head_dim / 2 / group, class Run>
void by_lanes(Index head_dim, const Run& run) {
  if constexpr (lanes > 1) {
    if (head_dim < 2 * lanes * group) return by_lanes<lanes / 2>(head_dim, run);
  }
  run(std::integral_constant<int, lanes>());
}
template <class T, class Launch>
void run(const RotateHeads<T>& a, const Launch& launch) {
  by_lanes(a.at.head_dim, [&](auto lanes) {
    constexpr Index at_once = threads / lanes;
    launch((a.at.rows() * a.at.all_heads() + at_once - 1) / at_once, rotate_heads<T, lanes>, a);
  });
}
template <class T, class Launch>
void run(const RotateHeadsBackward<T>& a, const Launch& launch) {
  const Index blocks = (a.at.rows() + rows_at_once - 1) / rows_at_once;
  by_lanes(a.at.head_dim, [&](auto lanes) { launch(blocks, rotate_heads_backward<T, lanes>, a); });
  if (a.norms != nullptr) run_sum_columns(a.block_sums, blocks, 2 * a.at.head_dim, a.norms_gradient, launch);
}

/// Uses a block of threads for each row, and as many groups as the channels need.
template <int groups = 1, class T, class Launch>
void run_wide_norm_backward(const NormRowsBackward<T>& a, Index blocks, const Launch& launch) {
  if constexpr (groups * stride < max_channels) {
    if (a.channels > groups * stride) return run_wide_norm_backward<2 * groups>(a, blocks, launch);
  }
  launch(blocks, norm_rows_backward<T, groups>, a);
}
template <class T, class Launch>
void run_norm_backward(const NormRowsBackward<T>& a, float* gradient, const Launch& launch) {
  const Index blocks = (a.rows + rows_at_once - 1) / rows_at_once;
  const bool dense = is_dense<T>(a.channels, {a.sum, a.weight, a.grad_out, a.grad_sum, a.grad_x});
  const bool done = dense && by_warp(a.channels, [&](auto groups) {
                      launch(blocks, norm_rows_backward_by_warp<T, groups>, a);
                    });
  if (!done) run_wide_norm_backward(a, blocks, launch);
  run_sum_columns(a.block_sums, blocks, a.means == nullptr ? a.channels : 2 * a.channels, gradient, launch);
}
template <class T, class Launch>
void run(const cpu::AddNormBackward<T>& a, const Launch& launch) {
  run_norm_backward(NormRowsBackward<T>{a.rows, a.channels, a.sum, a.weight_C, a.grad_out, a.grad_sum,
                                        nullptr, a.rstd_N, a.grad_x, a.block_sums},
                    a.weight_gradient_C, launch);
}
template <class T, class Launch>
void run(const cpu::AddLayerNormBackward<T>& a, const Launch& launch) {
  run_norm_backward(NormRowsBackward<T>{a.rows, a.channels, a.sum, a.affine_2C, a.grad_out, a.grad_sum,
                                        a.mean_N, a.rstd_N, a.grad_x, a.block_sums},
                    a.affine_gradient_2C, launch);
}
template <class T, class Launch>
void run(const cpu::SwiGlu<T>& a, const Launch& launch) {
  launch(a.rows, swiglu_rows<T>, a);
}
template <class T, class Launch>
void run(const cpu::SwiGluBackward<T>& a, const Launch& launch) {
  launch(a.rows, swiglu_rows_backward<T>, a);
}
template <class T, class Launch>
void run(const cpu::Gelu<T>& a, const Launch& launch) {
  launch(a.rows, gelu_rows<T>, a);
}
template <class T, class Launch>
void run(const cpu::GeluBackward<T>& a, const Launch& launch) {
  launch(a.rows, gelu_rows_backward<T>, a);
}
template <class T, class Launch>
void run(const cpu::SoftmaxLoss<T>& a, float* losses_N, const Launch& launch) {
  launch(a.rows, softmax_loss_rows<T>, a, losses_N);
}
