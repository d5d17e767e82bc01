// The passes on a GPU's streams: chunks, marks and order. Without CUDA only the refusal is tested.

#include <limits>
#include <optional>

#include "cuda_runners.h"
#include "isthmus/base/error.h"

namespace isthmus::quant {
namespace {

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
