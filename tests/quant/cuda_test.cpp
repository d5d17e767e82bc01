// Compares the kernels bit for bit with the scalar passes: on the CPU with emulated_gpu.h, and on a GPU if
// the machine has one.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "cuda_runners.h"

namespace isthmus::quant {
namespace {

template <class Runner>
class CudaPassesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!Runner::available()) GTEST_SKIP() << "skipped, no GPU";
    runner_ = std::make_unique<Runner>();
  }
  Runner& runner() { return *runner_; }

  void expect_same_encoding(Job job) {
    auto expected = job;
    const auto good = Scalar::encode(expected);
    ASSERT_EQ(runner().encode(job), good) << name_of(job.spec) << ", " << job.a.size() << " elements";
    if (good < job.a.size()) return;
    ASSERT_TRUE(same_bits(job.out, expected.out)) << name_of(job.spec) << ", " << job.a.size() << " elements";
    ASSERT_TRUE(same_bits(job.residual, expected.residual))
        << name_of(job.spec) << ", " << job.a.size() << " elements";
  }

 private:
  std::unique_ptr<Runner> runner_;
};
using Runners = testing::Types<Forward, Backward, Gpu>;
TYPED_TEST_SUITE(CudaPassesTest, Runners);

TYPED_TEST(CudaPassesTest, EncodesTheSameBytesAndResiduals) {
  std::size_t turn = 0;
  for (const auto& spec : all_specs()) {
    // Every spec with every length; inputs and residuals alternate.
    for (const auto n : lengths) {
      this->expect_same_encoding(job_of(spec, n, static_cast<Input>(turn % 3), turn / 3 % 2 == 0));
      ++turn;
      if (this->HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(CudaPassesTest, EncodesEveryInputWithAndWithoutResidual) {
  for (const auto& [kind, name, stored, layout, bits, default_block] : codecs) {
    for (const auto input : {Input::plain, Input::difference, Input::quotient}) {
      for (const bool feedback : {false, true}) {
        auto spec = default_spec(kind);
        spec.rounding = feedback ? Rounding::stochastic : Rounding::nearest;
        this->expect_same_encoding(job_of(spec, 5000, input, feedback));
        if (this->HasFatalFailure()) return;
      }
    }
  }
}

TYPED_TEST(CudaPassesTest, EncodesEdgeValues) {
  const float edges[] = {0.0F,      -0.0F, 0x1p-149F, -0x1p-126F, 0x1p-120F,
                         0x1p-121F, 1.0F,  -1.0F,     0x1p119F,   6.0F};
  for (auto spec : all_specs()) {
    if (spec.block > 64) continue;
    auto job = job_of(spec, 640, Input::plain, true);
    job.decay = 0;
    // Blocks of one edge value each, then of all of them; if the scale is too large, all runners must return
    // the same index.
    for (std::size_t i = 0; i < job.a.size(); ++i) job.a[i] = i < 480 ? edges[i / 48] : edges[i % 10];
    this->expect_same_encoding(job);
    for (auto& x : job.a) x = x > 1 ? 1 : x;
    this->expect_same_encoding(job);
    for (auto& x : job.a) x = 0.5F;  // all equal: topk keeps the first
    this->expect_same_encoding(job);
    for (auto& x : job.a) x = -0.0F;
    this->expect_same_encoding(job);
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(CudaPassesTest, ReportsTheFirstBadElement) {
  constexpr auto infinity = std::numeric_limits<float>::infinity();
  constexpr auto nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [kind, name, stored, layout, bits, default_block] : codecs) {
    for (const auto bad : {infinity, -infinity, nan, std::numeric_limits<float>::max()}) {
      for (const std::size_t first : {0U, 3U, 777U, 4096U, 9000U, 12002U}) {
        auto job = job_of(default_spec(kind), 12003, Input::plain, false);
        for (auto i = first; i < job.a.size(); i += 101) job.a[i] = bad;
        job.a.back() = nan;
        this->expect_same_encoding(job);
        if (this->HasFatalFailure()) return;
      }
    }
  }
}

TYPED_TEST(CudaPassesTest, DecodesAndAccumulatesTheSameBits) {
  for (const auto& spec : all_specs()) {
    for (const auto n : lengths) {
      auto job = job_of(spec, n, Input::plain, false);
      ASSERT_EQ(Scalar::encode(job), n);
      ASSERT_TRUE(valid(spec, job.out, n));
      Floats out(n), expected(n);
      this->runner().decode(spec, job.out, out);
      Scalar::decode(spec, job.out, expected);
      ASSERT_TRUE(same_bits(out, expected)) << name_of(spec) << ", " << n << " elements";
      this->runner().accumulate(spec, job.out, 0.3F, out);
      Scalar::accumulate(spec, job.out, 0.3F, expected);
      ASSERT_TRUE(same_bits(out, expected)) << name_of(spec) << ", " << n << " elements";
    }
  }
}

TYPED_TEST(CudaPassesTest, AppliesTheSameOuterStep) {
  for (const auto& [kind, name, stored, layout, bits, default_block] : codecs) {
    for (const std::size_t n : {1U, 130U, 4096U, 9001U}) {
      auto job = job_of(default_spec(kind), n, Input::plain, false);
      ASSERT_EQ(Scalar::encode(job), n);
      for (const float alpha : {0.0F, 0.25F, 1.0F, 2.0F}) {  // 2: the carry merge
        for (const bool nesterov : {true, false}) {
          const OuterStep step{
              .nesterov = nesterov, .merge = alpha == 2 ? Merge::carry : Merge::mix, .alpha = alpha};
          Applied got{values(n, 4), values(n, 5), nesterov || alpha != 0 ? values(n, 6) : Floats()};
          auto expected = got;
          this->runner().apply(job.spec, job.out, step, got);
          Scalar::apply(job.spec, job.out, step, expected);
          ASSERT_TRUE(same_bits(got, expected))
              << name_of(job.spec) << ", " << n << " elements, alpha " << alpha;
        }
      }
    }
  }
}

TYPED_TEST(CudaPassesTest, SumsTheSameProducts) {
  for (const std::size_t n : {0U, 1U, 15U, 16U, 17U, 1023U, 1024U, 1025U, 20000U, 300'000U}) {
    const auto x = values(n, 1), y = values(n, 2);
    EXPECT_EQ(this->runner().products(x, y), Scalar::products(x, y)) << n << " elements";
  }
}

/// Operands not aligned for vector accesses, and byte counts that are no multiple of any vector size.
TYPED_TEST(CudaPassesTest, TakesUnalignedOperands) {
  if constexpr (std::is_base_of_v<Emulated, TypeParam>) {
    for (const auto& spec : all_specs()) {
      constexpr std::size_t n = 4100;
      auto job = job_of(spec, n, Input::difference, true);
      auto expected = job;
      ASSERT_EQ(Scalar::encode(expected), n);
      Floats a(n + 1), b(n + 1), residual(n + 1);
      std::copy(job.a.begin(), job.a.end(), a.begin() + 1);
      std::copy(job.b.begin(), job.b.end(), b.begin() + 1);
      std::copy(job.residual.begin(), job.residual.end(), residual.begin() + 1);
      Bytes out(job.out.size() + 1);
      auto e = encoding(job);
      e.a = a.data() + 1;
      e.b = b.data() + 1;
      e.residual = residual.data() + 1;
      e.out = out.data() + 1;
      this->runner().passes().encode(spec, e);
      EXPECT_TRUE(std::equal(expected.out.begin(), expected.out.end(), out.begin() + 1)) << name_of(spec);
      EXPECT_TRUE(std::equal(expected.residual.begin(), expected.residual.end(), residual.begin() + 1));
      Floats decoded(n + 1), expected_decoded(n);
      this->runner().passes().decode(spec, out.data() + 1, decoded.data() + 1, n);
      Scalar::decode(spec, expected.out, expected_decoded);
      EXPECT_TRUE(std::equal(expected_decoded.begin(), expected_decoded.end(), decoded.begin() + 1))
          << name_of(spec);
    }
  } else {
    GTEST_SKIP() << "the GPU runs the same kernels as the emulation";
  }
}

}  // namespace
}  // namespace isthmus::quant
