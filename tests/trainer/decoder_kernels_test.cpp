// Compares the decoder's kernels, on the CPU with emulated_gpu.h, with the CPU's loops. cuda_test.cpp
// compares whole models on a GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "cuda/decoder_kernels.h"
#include "emulated_gpu.h"
#include "isthmus/base/random.h"

namespace isthmus::trainer::cuda {
namespace {

#include "cuda/decoder_kernels-inl.h"

template <class T>
std::vector<T> values(std::size_t count, std::uint64_t seed, float scale = 1) {
  std::vector<T> out(count);
  for (std::size_t i = 0; i < count; ++i) narrow(scale * (2 * random_unit(seed, 0, i) - 1), out[i]);
  return out;
}

template <class T>
void expect_near(const std::vector<T>& got, const std::vector<T>& expected, double tolerance,
                 const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double wanted = widen(expected[i]);
    ASSERT_NEAR(widen(got[i]), wanted, tolerance * (1 + std::abs(wanted))) << what << " at " << i;
  }
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// Ignores the number of thread blocks that a kernel asks for: the emulated blocks share the work.
class Emulated {
 public:
  explicit Emulated(bool reversed) : launch_(reversed) {}
  template <class Kernel, class... Arguments>
  void operator()(Index, Kernel* kernel, const Arguments&... arguments) const {
    launch_(kernel, arguments...);
  }

 private:
  emulated::Launcher launch_;
};

template <class T>
class DecoderKernels : public testing::Test {
 protected:
  static constexpr bool is_bf16 = sizeof(T) == 2;
  static constexpr double tolerance = is_bf16 ? 1.0 / 128 : 2e-5;

  /// Calls check(rows, channels). Rows begin at any address.
  template <class Check>
  void for_all_sizes(const Check& check) {
    for (const bool reversed : {false, true}) {
      launch.emplace(reversed);
      for (const Index rows : {1, 3, 130}) {
        for (const Index channels : {1, 7, 48, 1000, 1024, 1500}) {
          if (rows == 130 && channels > 48)
            continue;  // with many rows, only their distribution over blocks matters
          SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(channels));
          check(rows, channels);
        }
      }
      check(2, 4100);  // more columns than a thread of the usual kernel can hold
    }
  }
  static std::size_t size(Index rows, Index columns) { return static_cast<std::size_t>(rows * columns); }

  std::optional<Emulated> launch{false};
};
using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(DecoderKernels, Types);

template <class T, class Work>
void both_norms(const Work& work, const Emulated& launch, double tolerance) {
  // Runs the same work twice, into different memory.
  struct Out {
    std::vector<T> sum, out;
    std::vector<float> mean, rstd;
  };
  const auto elements = static_cast<std::size_t>(work.rows * work.channels);
  const auto into = [&](Out& out) {
    out.sum.resize(elements);
    out.out.resize(elements);
    out.rstd.resize(static_cast<std::size_t>(work.rows));
    out.mean.resize(static_cast<std::size_t>(work.rows));
    auto copy = work;
    copy.sum = out.sum.data();
    copy.out = out.out.data();
    copy.rstd_N = out.rstd.data();
    if constexpr (requires { copy.mean_N; }) copy.mean_N = out.mean.data();
    return copy;
  };
  Out got, expected;
  run(into(got), launch);
  cpu::run(into(expected));
  expect_near(got.rstd, expected.rstd, tolerance, "rstd");
  expect_near(got.mean, expected.mean, tolerance, "mean");
  if (work.delta != nullptr) expect_near(got.sum, expected.sum, tolerance, "sum");
  expect_near(got.out, expected.out, 2 * tolerance, "out");
}

TYPED_TEST(DecoderKernels, Norms) {
  using T = TypeParam;
  this->for_all_sizes([&](Index rows, Index channels) {
    const auto x = values<T>(this->size(rows, channels), 1), delta = values<T>(this->size(rows, channels), 2);
    const auto affine = values<T>(this->size(2, channels), 3, 2);
    const cpu::AddNorm<T> rms{rows, channels, 1e-5F, x.data(), delta.data(), affine.data(), {}, {}, {}};
    both_norms<T>(rms, *this->launch, this->tolerance);
    auto alone = rms;
    alone.delta = nullptr;
    both_norms<T>(alone, *this->launch, this->tolerance);
    if (channels == 1) return;  // the variance would be 0
    both_norms<T>(
        cpu::AddLayerNorm<T>{rows, channels, 1e-5F, x.data(), delta.data(), affine.data(), {}, {}, {}, {}},
        *this->launch, this->tolerance);
  });
}

TYPED_TEST(DecoderKernels, NormsBackward) {
  using T = TypeParam;
  this->for_all_sizes([&](Index rows, Index channels) {
    const auto elements = this->size(rows, channels);
    const auto sum = values<T>(elements, 1), grad_out = values<T>(elements, 2),
               grad_sum = values<T>(elements, 3);
    const auto affine = values<T>(this->size(2, channels), 4, 2);
    const auto means = values<float>(static_cast<std::size_t>(rows), 5, 0.1F);
    auto rstds = values<float>(static_cast<std::size_t>(rows), 6, 0.2F);
    for (auto& rstd : rstds) rstd += 1;
    std::vector<float> sums(this->size(row_blocks(rows), 2 * channels));
    for (const T* also : {grad_sum.data(), static_cast<const T*>(nullptr)}) {
      std::vector<T> got(elements), expected(elements);
      std::vector<float> got_affine(this->size(2, channels)), expected_affine(got_affine.size());
      cpu::AddNormBackward<T> rms{rows, channels,     sum.data(), affine.data(),     grad_out.data(),
                                  also, rstds.data(), got.data(), got_affine.data(), sums.data()};
      run(rms, *this->launch);
      rms.grad_x = expected.data();
      rms.weight_gradient_C = expected_affine.data();
      cpu::run(rms);
      expect_near(got, expected, 2 * this->tolerance, "gradient through RMSNorm");
      expect_near(got_affine, expected_affine, 1e-4, "gradient of its weight");
      cpu::AddLayerNormBackward<T> layer{
          rows,         channels,     sum.data(), affine.data(),     grad_out.data(), also,
          means.data(), rstds.data(), got.data(), got_affine.data(), sums.data()};
      run(layer, *this->launch);
      layer.grad_x = expected.data();
      layer.affine_gradient_2C = expected_affine.data();
      cpu::run(layer);
      expect_near(got, expected, 2 * this->tolerance, "gradient through LayerNorm");
      expect_near(got_affine, expected_affine, 1e-4, "gradient of its weight and bias");
    }
  });
}

TYPED_TEST(DecoderKernels, Activations) {
  using T = TypeParam;
  this->for_all_sizes([&](Index rows, Index channels) {
    const auto elements = this->size(rows, channels);
    const auto in = values<T>(2 * elements, 1, 6), grad = values<T>(elements, 2);
    std::vector<T> got(elements), expected(elements), got_both(2 * elements), expected_both(2 * elements);
    run(cpu::SwiGlu<T>{rows, channels, in.data(), got.data()}, *this->launch);
    cpu::run(cpu::SwiGlu<T>{rows, channels, in.data(), expected.data()});
    expect_near(got, expected, this->tolerance, "SwiGLU");
    std::vector<T> again(elements), expected_again(elements);
    run(cpu::SwiGluBackward<T>{rows, channels, in.data(), grad.data(), got_both.data(), again.data()},
        *this->launch);
    EXPECT_TRUE(same_bits(again, got)) << "SwiGLU, recomputed";
    cpu::run(cpu::SwiGluBackward<T>{rows, channels, in.data(), grad.data(), expected_both.data(),
                                    expected_again.data()});
    EXPECT_TRUE(same_bits(expected_again, expected)) << "the CPU's";
    expect_near(got_both, expected_both, this->tolerance, "gradient through SwiGLU");
    run(cpu::Gelu<T>{rows, channels, in.data(), got.data()}, *this->launch);
    cpu::run(cpu::Gelu<T>{rows, channels, in.data(), expected.data()});
    expect_near(got, expected, this->tolerance, "GELU");
    const auto made = got, expected_made = expected;
    got = expected = grad;  // in place
    run(cpu::GeluBackward<T>{rows, channels, in.data(), got.data(), got.data(), again.data()}, *this->launch);
    cpu::run(cpu::GeluBackward<T>{rows, channels, in.data(), expected.data(), expected.data(),
                                  expected_again.data()});
    EXPECT_TRUE(same_bits(again, made)) << "GELU, recomputed";
    EXPECT_TRUE(same_bits(expected_again, expected_made)) << "the CPU's";
    expect_near(got, expected, this->tolerance, "gradient through GELU");
  });
}

TYPED_TEST(DecoderKernels, ColumnSums) {
  using T = TypeParam;
  this->for_all_sizes([&](Index rows, Index width) {
    const auto x = values<T>(this->size(rows, width), 1);
    std::vector<float> got(static_cast<std::size_t>(width)), expected(got.size()),
        sums(this->size(row_blocks(rows), width));
    run(cpu::ColumnSums<T>{rows, width, x.data(), got.data(), sums.data()}, *this->launch);
    for (std::size_t i = 0; i < x.size(); ++i) expected[i % expected.size()] += widen(x[i]);
    expect_near(got, expected, 1e-5, "sums");
  });
}

/// Copies heads [first, first + count) of [N, all, D] to [B, count, T, D], and back.
template <class T>
std::vector<T> by_heads(const std::vector<T>& x, const cpu::Heads& at, Index first, Index count) {
  std::vector<T> out;
  for (Index b = 0; b < at.sequences; ++b) {
    for (Index head = first; head < first + count; ++head) {
      for (Index t = 0; t < at.length; ++t) {
        const auto* from = x.data() + ((b * at.length + t) * at.all_heads() + head) * at.head_dim;
        out.insert(out.end(), from, from + at.head_dim);
      }
    }
  }
  return out;
}
template <class T>
std::vector<T> by_tokens(const std::vector<T>& x, const cpu::Heads& at, Index count) {
  std::vector<T> out;
  for (Index b = 0; b < at.sequences; ++b) {
    for (Index t = 0; t < at.length; ++t) {
      for (Index head = 0; head < count; ++head) {
        const auto* from = x.data() + ((b * count + head) * at.length + t) * at.head_dim;
        out.insert(out.end(), from, from + at.head_dim);
      }
    }
  }
  return out;
}

TYPED_TEST(DecoderKernels, Heads) {
  using T = TypeParam;
  for (const Index dim : {8, 16, 32, 64, 128, 256}) {
    for (const bool normed : {false, true}) {
      for (const bool turned : {false, true}) {
        for (const bool reversed : {false, true}) {
          SCOPED_TRACE(std::to_string(dim) + (normed ? " normed" : "") + (turned ? " turned" : ""));
          this->launch.emplace(reversed);
          const auto cos = values<float>(this->size(35, dim / 2), 1), sin = values<float>(cos.size(), 2);
          const cpu::Heads at{2, 35, 4, 2, dim, turned ? cos.data() : nullptr, sin.data(), 1e-5F};
          const auto elements = this->size(at.rows() * at.all_heads(), dim);
          const auto qkv = values<T>(elements, 3), norms = values<T>(this->size(2, dim), 4, 2);
          const T* weights = normed ? norms.data() : nullptr;
          std::vector<T> got(elements);
          run(RotateHeads<T>{at, qkv.data(), weights, got.data()}, *this->launch);
          std::vector<T> q(this->size(at.rows() * at.heads, dim)), k(q.size() / 2), v(q.size() / 2);
          std::vector<float> rstd(this->size(at.rows(), at.heads + at.kv_heads));
          cpu::run(cpu::SplitHeads<T>{at, qkv.data(), weights, q.data(), k.data(), v.data(), rstd.data()});
          expect_near(by_heads(got, at, 0, 4), q, this->tolerance, "queries");
          expect_near(by_heads(got, at, 4, 2), k, this->tolerance, "keys");
          expect_near(by_heads(got, at, 6, 2), v, 0, "values");

          const auto grad_q = values<T>(q.size(), 5), grad_k = values<T>(k.size(), 6),
                     grad_v = values<T>(v.size(), 7);
          const auto q_rows = by_tokens(grad_q, at, 4), k_rows = by_tokens(grad_k, at, 2),
                     v_rows = by_tokens(grad_v, at, 2);
          std::vector<float> got_norms(this->size(2, dim)), expected_norms(got_norms.size()),
              sums(this->size(row_blocks(at.rows()), 2 * dim));
          std::vector<T> expected(elements);
          run(RotateHeadsBackward<T>{at, qkv.data(), weights, q_rows.data(), k_rows.data(), v_rows.data(),
                                     got.data(), got_norms.data(), sums.data()},
              *this->launch);
          cpu::run(cpu::SplitHeadsBackward<T>{at, qkv.data(), weights, rstd.data(), grad_q.data(),
                                              grad_k.data(), grad_v.data(), expected.data(),
                                              normed ? expected_norms.data() : nullptr});
          expect_near(got, expected, 2 * this->tolerance, "gradient of all heads");
          expect_near(got_norms, expected_norms, 1e-4, "gradient of the norms' weights");
        }
      }
    }
  }
}

TYPED_TEST(DecoderKernels, RowsOfLogitsMayBeWiderThanTheVocabulary) {
  using T = TypeParam;
  constexpr Index rows = 3, vocab = 257, stride = 320;
  const auto logits = values<T>(this->size(rows, stride), 1, 8);
  const std::vector<std::int64_t> targets = {0, 256, 100};
  auto got = logits;
  std::vector<T> expected;
  for (Index row = 0; row < rows; ++row) {
    const auto begin = logits.begin() + row * stride;
    expected.insert(expected.end(), begin, begin + vocab);
  }
  std::vector<float> losses(rows);
  run(cpu::SoftmaxLoss<T>{rows, vocab, 3, 0.01F, got.data(), targets.data(), stride}, losses.data(),
      *this->launch);
  const auto loss =
      cpu::softmax_loss(cpu::SoftmaxLoss<T>{rows, vocab, 3, 0.01F, expected.data(), targets.data()});
  EXPECT_NEAR(losses[0] + losses[1] + losses[2], loss, 1e-5 * loss);
  for (Index row = 0; row < rows; ++row) {
    const auto begin = got.begin() + row * stride;
    expect_near(std::vector<T>(begin, begin + vocab),
                std::vector<T>(expected.begin() + row * vocab, expected.begin() + (row + 1) * vocab),
                this->tolerance, "gradient of the logits");
    for (auto at = begin + vocab; at < begin + stride; ++at) EXPECT_EQ(widen(*at), 0);
  }
}

TYPED_TEST(DecoderKernels, ATargetOutsideOfTheVocabularyIsNoNumber) {
  using T = TypeParam;
  auto logits = values<T>(2 * 300, 1, 8);
  const std::vector<std::int64_t> targets = {300, -1};
  std::vector<float> losses(2);
  run(cpu::SoftmaxLoss<T>{2, 300, 1, 0, logits.data(), targets.data()}, losses.data(), *this->launch);
  EXPECT_TRUE(std::isnan(losses[0]) && std::isnan(losses[1]));
}

TYPED_TEST(DecoderKernels, SoftmaxLoss) {
  using T = TypeParam;
  this->for_all_sizes([&](Index rows, Index vocab) {
    const auto logits = values<T>(this->size(rows, vocab), 1, 8);
    std::vector<std::int64_t> targets;
    for (Index row = 0; row < rows; ++row) targets.push_back(row == 0 ? vocab - 1 : row * 7 % vocab);
    for (const float z_loss : {0.0F, 0.01F}) {
      auto got = logits, expected = logits;
      std::vector<float> losses(static_cast<std::size_t>(rows));
      run(cpu::SoftmaxLoss<T>{rows, vocab, 3, z_loss, got.data(), targets.data()}, losses.data(),
          *this->launch);
      const auto loss =
          cpu::softmax_loss(cpu::SoftmaxLoss<T>{rows, vocab, 3, z_loss, expected.data(), targets.data()});
      double sum = 0;
      for (const float x : losses) sum += x;
      EXPECT_NEAR(sum, loss, 1e-5 * (1 + std::abs(loss)));
      expect_near(got, expected, this->tolerance, "gradient of the logits");
    }
  });
}

/// The rows of an output that contain a NaN.
template <class T>
std::vector<bool> rows_with_nan(const std::vector<T>& values, Index rows) {
  std::vector<bool> found;
  const auto channels = values.size() / static_cast<std::size_t>(rows);
  for (std::size_t at = 0; at < values.size(); at += channels) {
    found.push_back(std::any_of(values.begin() + at, values.begin() + at + channels,
                                [](T x) { return std::isnan(widen(x)); }));
  }
  return found;
}

TYPED_TEST(DecoderKernels, ANaNStaysOne) {
  using T = TypeParam;
  constexpr Index rows = 3, channels = 601;  // one thread has only the last column
  const std::vector<bool> second = {false, true, false};
  const auto elements = this->size(rows, channels);
  const auto finite = values<T>(elements, 1), affine = values<T>(this->size(2, channels), 2);
  const std::vector<float> rstds(rows, 1), means(rows, 0);
  for (const float bad : {std::nanf(""), -std::nanf(""), INFINITY}) {
    auto x = finite;
    narrow(bad, x[2 * channels - 1]);
    std::vector<T> sum(elements), out(elements), both(2 * elements);
    std::vector<float> rstd(rows), mean(rows), gradient(2 * channels),
        sums(this->size(row_blocks(rows), 2 * channels));
    run(cpu::AddNorm<T>{rows, channels, 1e-5F, x.data(), nullptr, affine.data(), nullptr, out.data(),
                        rstd.data()},
        *this->launch);
    EXPECT_EQ(rows_with_nan(out, rows), second) << "RMSNorm";
    run(cpu::AddLayerNorm<T>{rows, channels, 1e-5F, x.data(), finite.data(), affine.data(), sum.data(),
                             out.data(), mean.data(), rstd.data()},
        *this->launch);
    EXPECT_EQ(rows_with_nan(out, rows), second) << "LayerNorm";
    run(cpu::AddLayerNormBackward<T>{rows, channels, finite.data(), affine.data(), x.data(), nullptr,
                                     means.data(), rstds.data(), out.data(), gradient.data(), sums.data()},
        *this->launch);
    EXPECT_EQ(rows_with_nan(out, rows), second) << "LayerNorm's gradient";
    EXPECT_FALSE(std::isfinite(gradient[channels - 1]));
    if (!std::isnan(bad)) continue;
    run(cpu::Gelu<T>{rows, channels, x.data(), out.data()}, *this->launch);
    EXPECT_EQ(rows_with_nan(out, rows), second) << "GELU";
    auto halves = values<T>(2 * elements, 3);
    halves[3 * channels - 1] = x[2 * channels - 1];
    run(cpu::SwiGlu<T>{rows, channels, halves.data(), out.data()}, *this->launch);
    EXPECT_EQ(rows_with_nan(out, rows), second) << "SwiGLU";
    const std::vector<std::int64_t> targets = {1, 2, 3};
    run(cpu::SoftmaxLoss<T>{rows, channels, 1, 0, x.data(), targets.data()}, rstd.data(), *this->launch);
    EXPECT_TRUE(std::isfinite(rstd[0]) && std::isnan(rstd[1]) && std::isfinite(rstd[2])) << "loss";
  }
}

TYPED_TEST(DecoderKernels, ALossThatIsNotFiniteIsToldByItsRow) {
  using T = TypeParam;
  auto logits = values<T>(3 * 600, 1, 8);
  narrow(std::nanf(""), logits[600 + 500]);
  const std::vector<std::int64_t> targets = {1, 2, 3};
  std::vector<float> losses(3);
  run(cpu::SoftmaxLoss<T>{3, 600, 1, 0, logits.data(), targets.data()}, losses.data(), *this->launch);
  EXPECT_TRUE(std::isfinite(losses[0]));
  EXPECT_FALSE(std::isfinite(losses[1]));
  EXPECT_TRUE(std::isfinite(losses[2]));
}

}  // namespace
}  // namespace isthmus::trainer::cuda
