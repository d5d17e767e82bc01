// The fused passes on a GPU, compared with their bound: a copy of as many bytes within its memory. The two
// are measured alternately, and `of_copy` is the copy's time divided by the pass's. A copy uses the whole
// GPU; a pass uses the number of thread blocks in its name.

#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "isthmus/base/random.h"
#include "isthmus/quant/cuda_passes.h"

namespace isthmus::quant {
namespace {

constexpr std::size_t elements = std::size_t{1} << 24;  // several times the largest cache
constexpr std::size_t thread_blocks[] = {8, 16, 32, 1024};

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

template <class T>
class OnGpu {
 public:
  explicit OnGpu(std::size_t size) : size_(size) {
    check(cudaMalloc(&data_, size * sizeof(T)));
    check(cudaMemset(data_, 0, size * sizeof(T)));
  }
  ~OnGpu() { cudaFree(data_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  [[nodiscard]] std::span<T> span() const { return {static_cast<T*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

/// A repeated period of rounded sums of uniform numbers: bell-shaped like outer gradients.
void fill(std::span<float> to, std::uint64_t stream) {
  constexpr std::size_t period = std::size_t{1} << 20;
  std::vector<float> x(period);
  for (std::size_t i = 0; i < period; ++i) {
    float sum = -2;
    for (std::uint64_t k = 0; k < 4; ++k) sum += random_unit(1, stream, i * 4 + k);
    x[i] = sum * 1e-3F;
  }
  for (std::size_t begin = 0; begin < to.size(); begin += period)
    check(cudaMemcpy(to.data() + begin, x.data(), period * sizeof(float), cudaMemcpyHostToDevice));
}

class Stopwatch {
 public:
  explicit Stopwatch(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// Seconds of GPU time for the work that `work` queues on the stream. The value that `work` returns is kept
  /// until then.
  template <class Work>
  double time(const Work& work) {
    check(cudaEventRecord(begin_, stream_));
    [[maybe_unused]] const auto kept = work();
    check(cudaEventRecord(end_, stream_));
    check(cudaEventSynchronize(end_));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return milliseconds * 1e-3;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

struct Operands {
  OnGpu<float> a{elements}, b{elements}, c{elements};
  OnGpu<std::byte> encoded{elements * sizeof(float)};
  OnGpu<std::byte> from{elements * 16}, to{elements * 16};  // source and target of the copy

  Operands() {
    fill(a.span(), 1);
    fill(b.span(), 2);
    check(cudaDeviceSynchronize());
  }
  [[nodiscard]] std::span<std::byte> encoded_as(const CodecSpec& spec) const {
    return encoded.span().first(encoded_size(spec, elements));
  }
};

/// A pass, and how many fp32 operands it reads or writes, each counted as often as it is used.
struct Pass {
  const char* name;
  std::size_t operands;
  std::function<CudaMark(CudaPasses&, const CodecSpec&, const Operands&)> run;
};

const Pass passes[] = {
    {"encode", 1,
     [](CudaPasses& on, const CodecSpec& spec, const Operands& x) {
       return on.encode(spec, x.a.span(), {}, {}, x.encoded_as(spec));
     }},
    {"encode_difference_feedback", 4,
     [](CudaPasses& on, const CodecSpec& spec, const Operands& x) {
       return on.encode_difference(spec, x.a.span(), x.b.span(), {x.c.span()}, {}, x.encoded_as(spec));
     }},
    {"decode", 1,
     [](CudaPasses& on, const CodecSpec& spec, const Operands& x) {
       on.decode(spec, x.encoded_as(spec), x.c.span());
       return on.mark();
     }},
    {"decode_accumulate", 2,
     [](CudaPasses& on, const CodecSpec& spec, const Operands& x) {
       on.decode_accumulate(spec, x.encoded_as(spec), 0.5F, x.c.span());
       return on.mark();
     }},
    {"decode_apply", 6,
     [](CudaPasses& on, const CodecSpec& spec, const Operands& x) {
       const OuterStep step{.alpha = 0.5F};
       on.decode_apply(spec, x.encoded_as(spec), step, x.a.span(), x.b.span(), x.c.span());
       return on.mark();
     }},
};

void measure(benchmark::State& state, const Pass& pass, const CodecSpec& spec, std::size_t blocks) {
  CudaPasses on({.thread_blocks = blocks});
  const Operands operands;
  on.encode(spec, operands.a.span(), {}, {}, operands.encoded_as(spec)).wait();
  Stopwatch watch(on.stream());
  const auto bytes = pass.operands * elements * sizeof(float) + operands.encoded_as(spec).size();
  double copying = 0;
  double passing = 0;
  const auto copy = [&] {  // reads half of the bytes and writes the other half
    const auto status = cudaMemcpyAsync(operands.to.span().data(), operands.from.span().data(), bytes / 2,
                                        cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(on.stream()));
    check(status);
    return status;
  };
  for (auto _ : state) {
    copying += watch.time(copy);
    const auto seconds = watch.time([&] { return pass.run(on, spec, operands); });
    passing += seconds;
    state.SetIterationTime(seconds);
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations() * elements));
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * bytes));
  state.counters["of_copy"] = copying / passing;
}

void add(const Pass& pass, const CodecSpec& spec, std::size_t blocks) {
  const auto name = std::string(to_string(spec.kind)) +
                    (spec.rounding == Rounding::stochastic ? "_drawn/" : "/") + pass.name +
                    "/thread_blocks:" + std::to_string(blocks);
  const auto run = [&pass, spec, blocks](benchmark::State& state) { measure(state, pass, spec, blocks); };
  benchmark::RegisterBenchmark(name.c_str(), run)->UseManualTime();
}

void add_all() {
  for (const auto codec : codec_names) {
    auto spec = default_spec(codec_kind(codec));
    for (const auto& pass : passes) {
      for (const auto blocks : thread_blocks) add(pass, spec, blocks);
    }
    spec.rounding = Rounding::stochastic;
    if (spec.kind != CodecKind::fp32) add(passes[1], spec, 16);
  }
}

}  // namespace
}  // namespace isthmus::quant

int main(int argc, char** argv) {
  if (!isthmus::quant::cuda_available()) {
    std::puts("skipped, no GPU");
    return 0;
  }
  isthmus::quant::add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
