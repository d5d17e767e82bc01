// The CUDA device, where there is a GPU.

#include <cuda_runtime_api.h>

#include <algorithm>

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
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no GPU here";
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

}  // namespace
}  // namespace isthmus::data
