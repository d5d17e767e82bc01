// Compares the kernels bit for bit with the scalar passes: on the CPU with emulated_gpu.h, and on a GPU if
// the machine has one.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "emulated_passes.h"
#include "formats.h"
#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "isthmus/quant/cuda_passes.h"
#include "passes_table.h"
#ifdef ISTHMUS_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace isthmus::quant {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;
using Input = Encoding::Input;

/// Operands of a pass. The pass overwrites its outputs.
struct Job {
  CodecSpec spec;
  Input input = Input::plain;
  Floats a = {}, b = {};
  float divisor = 3;
  Floats residual = {};
  float decay = 0.75F;
  Noise noise{0x123456789abcdefULL, 12345};
  Bytes out = {};
};
struct Applied {
  Floats theta, velocity, local;
  friend bool operator==(const Applied&, const Applied&) = default;
};

Encoding encoding(Job& job) {
  return {.input = job.input,
          .a = job.a.data(),
          .b = job.b.data(),
          .divisor = job.divisor,
          .residual = job.residual.empty() ? nullptr : job.residual.data(),
          .decay = job.decay,
          .noise = job.noise,
          .elements = job.a.size(),
          .out = job.out.data()};
}

// ---- runners of the passes ----

struct Scalar {
  static std::size_t encode(Job& job) { return scalar_passes().encode(job.spec, encoding(job)); }
  static void decode(const CodecSpec& spec, const Bytes& in, Floats& out) {
    scalar_passes().decode(spec, in.data(), out.data(), out.size());
  }
  static void accumulate(const CodecSpec& spec, const Bytes& in, float weight, Floats& sum) {
    scalar_passes().accumulate(spec, in.data(), weight, sum.data(), sum.size());
  }
  static void apply(const CodecSpec& spec, const Bytes& in, const OuterStep& step, Applied& to) {
    scalar_passes().apply(spec, in.data(), step, to.theta.data(), to.velocity.data(),
                          to.local.empty() ? nullptr : to.local.data(), to.theta.size());
  }
  static Products products(const Floats& x, const Floats& y) {
    Products total;
    scalar_passes().products(x.data(), y.data(), x.size(), total);
    return total;
  }
};

std::vector<Products> tiles_of(const Floats& x) {
  return std::vector<Products>((x.size() + products_tile - 1) / products_tile);
}

class Emulated {
 public:
  static bool available() { return true; }
  explicit Emulated(bool reversed) : passes_(reversed) {}
  EmulatedPasses& passes() { return passes_; }

  std::size_t encode(Job& job) { return passes_.encode(job.spec, encoding(job)); }
  void decode(const CodecSpec& spec, const Bytes& in, Floats& out) {
    passes_.decode(spec, in.data(), out.data(), out.size());
  }
  void accumulate(const CodecSpec& spec, const Bytes& in, float weight, Floats& sum) {
    passes_.accumulate(spec, in.data(), weight, sum.data(), sum.size());
  }
  void apply(const CodecSpec& spec, const Bytes& in, const OuterStep& step, Applied& to) {
    passes_.apply(spec, in.data(), step, to.theta.data(), to.velocity.data(),
                  to.local.empty() ? nullptr : to.local.data(), to.theta.size());
  }
  Products products(const Floats& x, const Floats& y) {
    auto tiles = tiles_of(x);
    passes_.products(x.data(), y.data(), x.size(), tiles.data());
    Products total;
    add_products(tiles, total);
    return total;
  }

 private:
  EmulatedPasses passes_;
};
struct Forward : Emulated {
  Forward() : Emulated(false) {}
};
struct Backward : Emulated {
  Backward() : Emulated(true) {}
};

#ifdef ISTHMUS_WITH_CUDA
/// A copy of a vector in the GPU's memory.
template <class T>
class OnGpu {
 public:
  explicit OnGpu(const std::vector<T>& from) : size_(from.size()) {
    EXPECT_EQ(cudaMalloc(&data_, std::max<std::size_t>(1, size_ * sizeof(T))), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, from.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  ~OnGpu() { cudaFree(data_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  [[nodiscard]] std::span<T> span() const { return {static_cast<T*>(data_), size_}; }
  void read(std::vector<T>& to) const {
    EXPECT_EQ(cudaMemcpy(to.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

class Gpu {
 public:
  static bool available() { return cuda_available(); }

  std::size_t encode(Job& job) {
    const OnGpu a(job.a), b(job.b), residual(job.residual);
    const OnGpu out(job.out);
    const Feedback feedback{residual.span(), job.decay};
    auto mark =
        job.input == Input::plain ? passes_.encode(job.spec, a.span(), feedback, job.noise, out.span())
        : job.input == Input::difference
            ? passes_.encode_difference(job.spec, a.span(), b.span(), feedback, job.noise, out.span())
            : passes_.encode_quotient(job.spec, a.span(), job.divisor, feedback, job.noise, out.span());
    const auto bad = mark.wait();
    EXPECT_TRUE(mark.is_done());
    out.read(job.out);
    residual.read(job.residual);
    return bad.value_or(job.a.size());
  }
  void decode(const CodecSpec& spec, const Bytes& in, Floats& out) {
    const OnGpu encoded(in);
    const OnGpu to(out);
    passes_.decode(spec, encoded.span(), to.span());
    passes_.mark().wait();
    to.read(out);
  }
  void accumulate(const CodecSpec& spec, const Bytes& in, float weight, Floats& sum) {
    const OnGpu encoded(in);
    const OnGpu to(sum);
    passes_.decode_accumulate(spec, encoded.span(), weight, to.span());
    passes_.mark().wait();
    to.read(sum);
  }
  void apply(const CodecSpec& spec, const Bytes& in, const OuterStep& step, Applied& to) {
    const OnGpu encoded(in);
    const OnGpu theta(to.theta), velocity(to.velocity), local(to.local);
    passes_.decode_apply(spec, encoded.span(), step, theta.span(), velocity.span(), local.span());
    passes_.mark().wait();
    theta.read(to.theta);
    velocity.read(to.velocity);
    local.read(to.local);
  }
  Products products(const Floats& x, const Floats& y) {
    const OnGpu first(x), second(y);
    auto tiles = tiles_of(x);
    const OnGpu sums(tiles);
    passes_.products(first.span(), second.span(), sums.span());
    passes_.mark().wait();
    sums.read(tiles);
    Products total;
    add_products(tiles, total);
    return total;
  }

 private:
  CudaPasses passes_{{.thread_blocks = 2, .marks = 4}};
};
#else
struct Gpu : Forward {
  static bool available() { return false; }
};
#endif

// ---- inputs ----

/// Bell-shaped around zero, with rows of zeros and a few large and tiny values.
Floats values(std::size_t n, std::uint64_t stream) {
  Floats x(n);
  for (std::size_t i = 0; i < n; ++i) {
    float sum = -2;
    for (std::uint64_t k = 0; k < 4; ++k) sum += random_unit(7, stream, i * 4 + k);
    const auto draw = random_bits(8, stream, i);
    x[i] = (i / 64 % 16 == 5) ? 0 : draw % 97 == 0 ? 8 * sum : draw % 89 == 0 ? sum * 1e-30F : sum;
  }
  return x;
}

Job job_of(const CodecSpec& spec, std::size_t n, Input input, bool feedback) {
  Job job{.spec = spec, .input = input, .a = values(n, 1), .b = values(n, 2)};
  if (feedback) job.residual = values(n, 3);
  job.out = Bytes(encoded_size(spec, n), std::byte{0xa5});
  return job;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
bool same_bits(const Applied& a, const Applied& b) {
  return same_bits(a.theta, b.theta) && same_bits(a.velocity, b.velocity) && same_bits(a.local, b.local);
}

constexpr CodecKind kinds[] = {CodecKind::fp32, CodecKind::bf16,   CodecKind::int8,   CodecKind::int4,
                               CodecKind::e3m0, CodecKind::lloyd4, CodecKind::lloyd3, CodecKind::lloyd2,
                               CodecKind::sign, CodecKind::topk};
constexpr Rounding roundings[] = {Rounding::nearest, Rounding::stochastic};
constexpr ScaleFormat scales[] = {ScaleFormat::bf16, ScaleFormat::e5m3, ScaleFormat::e8m0};
constexpr std::size_t lengths[] = {0, 1, 3, 15, 16, 17, 129, 500, 4095, 4096, 4097, 20000};

std::vector<CodecSpec> all_specs() {
  std::vector<CodecSpec> specs;
  for (const auto kind : kinds) {
    for (const auto rounding : roundings) {
      const bool blocks = kind != CodecKind::fp32 && kind != CodecKind::bf16 && kind != CodecKind::topk;
      for (const auto scale : scales) {
        for (std::uint32_t block = smallest_block; block <= largest_block; block *= 2)
          if (blocks) specs.push_back({kind, block, scale, block == 64 ? 0.9F : 1, rounding});
      }
      for (const std::uint32_t top_k : {64U, 1U, 7U, 1000U, 4096U})
        if (kind == CodecKind::topk) specs.push_back({.kind = kind, .rounding = rounding, .top_k = top_k});
      if (!blocks && kind != CodecKind::topk) specs.push_back({.kind = kind, .rounding = rounding});
    }
  }
  return specs;
}
std::string name_of(const CodecSpec& spec) {
  return std::string(to_string(spec.kind)) + " block " + std::to_string(spec.block) + " scale " +
         std::string(to_string(spec.scale)) + (spec.rounding == Rounding::stochastic ? " drawn" : "") +
         " top_k " + std::to_string(spec.top_k);
}

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
  for (const auto kind : kinds) {
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
  for (const auto kind : kinds) {
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
  for (const auto kind : kinds) {
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

#ifdef ISTHMUS_WITH_CUDA
class CudaStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_available()) GTEST_SKIP() << "skipped, no GPU";
  }
};

TEST_F(CudaStreamTest, ChunksInSequenceAreTheWhole) {
  constexpr std::size_t chunk = 8192, chunks = 9, n = chunk * chunks - 100;
  for (const auto kind : {CodecKind::lloyd4, CodecKind::lloyd3, CodecKind::topk, CodecKind::bf16}) {
    auto job = job_of(default_spec(kind), n, Input::plain, true);
    job.spec.rounding = Rounding::stochastic;
    const OnGpu a(job.a), residual(job.residual);
    const OnGpu out(Bytes(encoded_size(job.spec, chunk) * chunks));
    CudaPasses passes({.marks = chunks});
    passes.after(nullptr);
    std::vector<CudaMark> marks;
    for (std::size_t c = 0; c < chunks; ++c) {
      const auto begin = c * chunk, size = std::min(chunk, n - begin);
      auto noise = job.noise;
      noise.first_element += begin;
      marks.push_back(passes.encode(
          job.spec, a.span().subspan(begin, size), {residual.span().subspan(begin, size), job.decay}, noise,
          out.span().subspan(encoded_size(job.spec, chunk) * c, encoded_size(job.spec, size))));
    }
    for (auto& mark : marks) EXPECT_EQ(mark.wait(), std::nullopt);
    Bytes got(out.span().size());
    Floats left(n);
    out.read(got);
    residual.read(left);
    for (std::size_t c = 0; c < chunks; ++c) {
      const auto begin = c * chunk, size = std::min(chunk, n - begin);
      Bytes expected(encoded_size(job.spec, size));
      auto e = encoding(job);
      e.a += begin;
      e.residual += begin;
      e.noise.first_element += begin;
      e.elements = size;
      e.out = expected.data();
      ASSERT_EQ(scalar_passes().encode(job.spec, e), size);
      EXPECT_EQ(std::memcmp(expected.data(), got.data() + encoded_size(job.spec, chunk) * c, expected.size()),
                0);
    }
    EXPECT_TRUE(same_bits(left, job.residual));
  }
}

TEST_F(CudaStreamTest, ABadChunkIsReportedOnceAndByItself) {
  CudaPasses passes({.marks = 2});
  auto x = values(5000, 1);
  const CodecSpec spec;
  const OnGpu good(x);
  x[4321] = std::numeric_limits<float>::infinity();
  const OnGpu bad(x);
  const OnGpu out(Bytes(encoded_size(spec, x.size())));
  for (int round = 0; round < 3; ++round) {
    auto first = passes.encode(spec, good.span(), {}, {}, out.span());
    auto second = passes.encode(spec, bad.span(), {}, {}, out.span());
    EXPECT_EQ(second.wait(), std::optional<std::size_t>(4321));
    EXPECT_EQ(first.wait(), std::nullopt);
  }
  for (int round = 0; round < 4; ++round)
    EXPECT_EQ(passes.encode(spec, good.span(), {}, {}, out.span()).wait(), std::nullopt);
}

TEST_F(CudaStreamTest, StreamsAreOrdered) {
  cudaStream_t other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  {
    CudaPasses passes({});
    const auto x = values(1 << 20, 1);
    const CodecSpec spec{CodecKind::fp32};
    const OnGpu from(x), to(Floats(x.size())), back(Floats(x.size()));
    const OnGpu encoded(Bytes(x.size() * 4));
    ASSERT_EQ(
        cudaMemcpyAsync(to.span().data(), from.span().data(), x.size() * 4, cudaMemcpyDeviceToDevice, other),
        cudaSuccess);
    passes.after(other);
    const auto mark = passes.encode(spec, to.span(), {}, {}, encoded.span());
    mark.before(other);
    ASSERT_EQ(cudaMemsetAsync(to.span().data(), 0, x.size() * 4, other), cudaSuccess);
    passes.decode(spec, encoded.span(), back.span());
    passes.before(other);
    Floats got(x.size());
    ASSERT_EQ(cudaMemcpyAsync(got.data(), back.span().data(), x.size() * 4, cudaMemcpyDeviceToHost, other),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
    EXPECT_TRUE(same_bits(got, x));
  }
  cudaStreamDestroy(other);
}
#endif

TEST(CudaPassesConstruction, RefusesAGpuThatIsNotThere) {
  try {
    CudaPasses passes({.ordinal = 1000});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
  }
}

}  // namespace
}  // namespace isthmus::quant
