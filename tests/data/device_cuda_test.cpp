// The CUDA device. Needs a GPU.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "data_support.h"
#include "isthmus/data/loader.h"

namespace isthmus::data {
namespace {

std::vector<std::byte> from_device(const Batch& batch) {
  std::vector<std::byte> out(batch.rows.size() * batch.row_bytes());
  EXPECT_EQ(cudaMemcpy(out.data(), batch.rows.front(), out.size(), cudaMemcpyDeviceToHost), cudaSuccess);
  return out;
}

TEST(CudaDevice, LoadsTheSameBatchesAsTheCpu) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "this machine has no GPU";
  const TemporaryFolder folder;
  auto config = config_of(folder.write("ids.bin", counting_ids(1000)));
  config.tokenizer = "vocab:1000";
  const Corpus corpus(config);
  LoaderOptions options;
  options.seq_len = 4;
  options.batch = 3;
  Trace trace;
  const auto cpu = make_cpu_device();
  const auto gpu = make_cuda_device(0, nullptr);
  OneTrack one, same;
  Loader expected(corpus, options, one, *cpu, trace);
  Loader loader(corpus, options, same, *gpu, trace);
  for (int step = 0; step < 200; ++step) {
    const auto& want = expected.next();
    const auto& got = loader.next();
    ASSERT_TRUE(std::ranges::equal(got.samples, want.samples));
    ASSERT_TRUE(got.together);
    std::vector<std::byte> rows;
    for (const auto* row : want.rows) rows.insert(rows.end(), row, row + want.row_bytes());
    ASSERT_EQ(from_device(got), rows);
  }
}

TEST(CudaDevice, ItsTimerTellsWhenWorkRan) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "this machine has no GPU";
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t bytes = 1 << 28;
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
  const auto gpu = make_cuda_device(0, nullptr);
  const auto timer = gpu->timer();
  EXPECT_FALSE(timer->next());
  std::vector<Clock::time_point> told;
  const auto begin = Clock::now();
  for (int i = 0; i < 10; ++i) {
    timer->begin();
    ASSERT_EQ(cudaMemsetAsync(memory, i, bytes, nullptr), cudaSuccess);
    timer->end();
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto end = Clock::now();
  while (const auto span = timer->next()) {
    EXPECT_GT(span->end, span->begin);
    told.push_back(span->begin);
    told.push_back(span->end);
  }
  ASSERT_EQ(told.size(), 20U);
  EXPECT_TRUE(std::ranges::is_sorted(told));
  // The clocks of host and GPU are matched to within tens of microseconds.
  EXPECT_GT(told.front(), begin - std::chrono::milliseconds(1));
  EXPECT_LT(told.back(), end + std::chrono::milliseconds(1));
  cudaFree(memory);
}

}  // namespace
}  // namespace isthmus::data
