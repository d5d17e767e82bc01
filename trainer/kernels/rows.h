#pragma once
// Shared by the CPU kernels. Each kernel is a function `rows` that widens a row's operands to fp32 (a row
// stays in the first-level cache), computes in loops over fp32 alone, which any compiler vectorises, and
// narrows the results. Included only by the sources of the kernels.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu_kernels.h"

namespace isthmus::trainer::cpu {

inline constexpr Index scratch_rows = 6;  ///< the maximum number of rows that a kernel uses
inline constexpr Index row_block = 128;   ///< rows that one thread takes at a time, and over which sums are
                                          ///< added first

/// Calls body(block, begin, end) for each block of rows of `width` elements: on all threads, if there is
/// enough work for them.
template <class Body>
void by_blocks(Index rows, Index width, const Body& body) {
  const Index blocks = (rows + row_block - 1) / row_block;
  [[maybe_unused]] const bool shared = blocks > 1 && is_worth_sharing(static_cast<std::size_t>(rows * width));
#pragma omp parallel for schedule(static) if (shared)
  for (Index b = 0; b < blocks; ++b) body(b, b * row_block, std::min(rows, (b + 1) * row_block));
}

/// A row of sums for each block of rows; the blocks' sums are added in order.
class BlockSums {
 public:
  BlockSums(Index rows, Index width)
      : width_(width), sums_(static_cast<std::size_t>((rows + row_block - 1) / row_block * width)) {}
  float* of(Index block) { return sums_.data() + block * width_; }
  void add_into(float* out) const {
    std::fill_n(out, width_, 0.0F);
    for (auto at = sums_.begin(); at != sums_.end(); at += width_) {
      for (Index c = 0; c < width_; ++c) out[c] += at[c];
    }
  }

 private:
  Index width_;
  std::vector<float> sums_;
};

/// e^x: x = n ln 2 + r, |r| <= ln 2 / 2; Taylor to r^6 with Horner's rule (relative error 2e-7), exponent n
/// by its bits. Below -87 it returns about 1e-38; no caller needs an exact zero.
ISTHMUS_INLINE float exponential(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  const float shifted = x * 1.44269504F + 12582912.0F;  // 1.5 * 2^23: the sum's low bits are round(x / ln 2)
  const float n = shifted - 12582912.0F;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float y = 1.0F / 720;
  y = y * r + 1.0F / 120;
  y = y * r + 1.0F / 24;
  y = y * r + 1.0F / 6;
  y = y * r + 0.5F;
  y = y * r + 1.0F;
  y = y * r + 1.0F;
  const auto bits = std::bit_cast<std::int32_t>(shifted) - 0x4b400000;
  return y * std::bit_cast<float>((bits + 127) << 23);
}

ISTHMUS_INLINE const float* widened(const float* row, Index, float*) { return row; }
ISTHMUS_INLINE const float* widened(const Bf16* row, Index n, float* scratch) {
  for (Index i = 0; i < n; ++i) scratch[i] = widen(row[i]);
  return scratch;
}
/// Where results are computed: directly in the row, or in scratch, from which `put` narrows them.
ISTHMUS_INLINE float* room(float* row, float*) { return row; }
ISTHMUS_INLINE float* room(Bf16*, float* scratch) { return scratch; }
ISTHMUS_INLINE void put(const float*, Index, float*) {}
ISTHMUS_INLINE void put(const float* computed, Index n, Bf16* row) {
  for (Index i = 0; i < n; ++i) narrow(computed[i], row[i]);
}

inline constexpr Index lanes = 16;
using Lanes = float __attribute__((vector_size(lanes * sizeof(float))));

ISTHMUS_INLINE void load(const float* from, Lanes& to) { std::memcpy(&to, from, sizeof to); }

ISTHMUS_INLINE float sum(const float* x, Index n) {
  Lanes sums = {};
  Index i = 0;
  for (; i + lanes <= n; i += lanes) {
    Lanes part;
    load(x + i, part);
    sums += part;
  }
  float total = 0;
  for (Index j = 0; j < lanes; ++j) total += sums[j];
  for (; i < n; ++i) total += x[i];
  return total;
}
ISTHMUS_INLINE float dot(const float* x, const float* y, Index n) {
  Lanes sums = {};
  Index i = 0;
  for (; i + lanes <= n; i += lanes) {
    Lanes a, b;
    load(x + i, a);
    load(y + i, b);
    sums += a * b;
  }
  float total = 0;
  for (Index j = 0; j < lanes; ++j) total += sums[j];
  for (; i < n; ++i) total += x[i] * y[i];
  return total;
}
ISTHMUS_INLINE float largest(const float* x, Index n) {
  float top = x[0];
  Index i = 0;
  if (n >= lanes) {
    Lanes tops;
    load(x, tops);
    for (i = lanes; i + lanes <= n; i += lanes) {
      Lanes part;
      load(x + i, part);
      tops = part > tops ? part : tops;
    }
    for (Index j = 0; j < lanes; ++j) top = tops[j] > top ? tops[j] : top;
  }
  for (; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

/// Rows of fp32 numbers, in one allocation for each block of rows.
class Scratch {
 public:
  Scratch(Index rows, Index width) : width_(width), numbers_(static_cast<std::size_t>(rows * width)) {}
  float* row(Index i) { return numbers_.data() + i * width_; }

 private:
  Index width_;
  std::vector<float> numbers_;
};

ISTHMUS_INLINE float reciprocal_root(const float* x, Index n, float eps) {
  return 1.0F / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
}

/// One row: with y = x rstd w, dx = rstd (w dy - x rstd^2 mean(w dy x)), dw += dy x rstd. `weighted` is
/// scratch.
ISTHMUS_INLINE void norm_backward(const float* x, const float* weight, const float* grad, float rstd, Index n,
                                  float* weighted, float* grad_x, float* weight_sums) {
  for (Index c = 0; c < n; ++c) {
    weighted[c] = grad[c] * weight[c];
    weight_sums[c] += grad[c] * x[c] * rstd;
  }
  const float back = dot(weighted, x, n) * rstd * rstd / static_cast<float>(n);
  for (Index c = 0; c < n; ++c) grad_x[c] = rstd * (weighted[c] - x[c] * back);
}

/// Runs a kernel without sums on all rows; `width` is the longest row of its scratch.
template <class Kernel>
void all_rows(const Kernel& a, Index count, Index width) {
  by_blocks(count, width, [&](Index, Index begin, Index end) {
    Scratch scratch(scratch_rows, width);
    run_rows(a, begin, end, scratch);
  });
}
/// Runs a kernel on all rows and writes its `sum_width` sums to `out`, which may be null.
template <class Kernel>
void all_rows_summing(const Kernel& a, Index count, Index width, Index sum_width, float* out) {
  BlockSums sums(count, sum_width);
  by_blocks(count, width, [&](Index block, Index begin, Index end) {
    Scratch scratch(scratch_rows, width);
    run_rows(a, begin, end, scratch, sums.of(block));
  });
  if (out != nullptr) sums.add_into(out);
}

template <class Work>
void run(const Work& work) {
  run_all(work);
}

// One function for each kernel and type, which ISTHMUS_CLONES compiles in several versions. The templates
// above find these functions by the type of their first argument.
#define ISTHMUS_RUN_ROWS(Result, Type)                                                             \
  ISTHMUS_CLONES static Result run_rows(const Type& a, Index begin, Index end, Scratch& scratch) { \
    return rows(a, begin, end, scratch);                                                           \
  }
#define ISTHMUS_RUN_ROWS_SUMMING(Type)                                                         \
  ISTHMUS_CLONES static void run_rows(const Type& a, Index begin, Index end, Scratch& scratch, \
                                      float* sums) {                                           \
    rows(a, begin, end, scratch, sums);                                                        \
  }
// NOLINTBEGIN(bugprone-macro-parentheses): the arguments are types
/// Defines run() for a kernel; `...` is run_all's statement, with the kernel's operands in `a`.
#define ISTHMUS_RUN_ALL(Kernel, ...)        \
  template <class T>                        \
  static void run_all(const Kernel<T>& a) { \
    __VA_ARGS__;                            \
  }                                         \
  template void run(const Kernel<float>&);  \
  template void run(const Kernel<Bf16>&);
#define ISTHMUS_KERNEL(Kernel, count, width) \
  ISTHMUS_RUN_ROWS(void, Kernel<float>)      \
  ISTHMUS_RUN_ROWS(void, Kernel<Bf16>)       \
  ISTHMUS_RUN_ALL(Kernel, all_rows(a, count, width))
#define ISTHMUS_SUMMING_KERNEL(Kernel, count, width, sum_width, out) \
  ISTHMUS_RUN_ROWS_SUMMING(Kernel<float>)                            \
  ISTHMUS_RUN_ROWS_SUMMING(Kernel<Bf16>)                             \
  ISTHMUS_RUN_ALL(Kernel, all_rows_summing(a, count, width, sum_width, out))
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace isthmus::trainer::cpu
