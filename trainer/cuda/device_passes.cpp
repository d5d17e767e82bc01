#include "device_passes.h"

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/flat_ops.h"
#include "isthmus/base/error.h"
#include "isthmus/quant/cuda_passes.h"

namespace isthmus::trainer::cuda {
namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(ErrorKind::data,
              std::string("outer loop: ") + what + " on the GPU failed: " + cudaGetErrorString(status));
}

class GpuMark final : public outer_sync::Passes::Mark {
 public:
  explicit GpuMark(quant::CudaMark mark) : mark_(std::move(mark)) {}
  std::optional<std::size_t> wait() override { return mark_.wait(); }

 private:
  quant::CudaMark mark_;
};

/// Selects a GPU for this thread until the end of the scope: libtorch computes on the thread's current GPU.
class Selected {
 public:
  explicit Selected(int ordinal) {
    check(cudaGetDevice(&before_), "device selection");
    check(cudaSetDevice(ordinal), "device selection");
  }
  ~Selected() { cudaSetDevice(before_); }
  Selected(const Selected&) = delete;
  Selected& operator=(const Selected&) = delete;

 private:
  int before_ = 0;
};

/// Copies go into the passes' own stream, so that everything is in one order.
class GpuPasses final : public outer_sync::Passes {
 public:
  GpuPasses(int ordinal, void* model_stream)
      : ordinal_(ordinal), model_stream_(model_stream), passes_({.ordinal = ordinal, .marks = marks}) {}

  std::shared_ptr<std::byte> device_memory(std::size_t bytes) override {
    const Selected selected(ordinal_);
    void* at = nullptr;
    check(cudaMalloc(&at, bytes), "allocation");
    return {static_cast<std::byte*>(at), [](std::byte* p) { cudaFree(p); }};
  }
  std::shared_ptr<std::byte> host_memory(std::size_t bytes) override {
    const Selected selected(ordinal_);
    void* at = nullptr;
    check(cudaMallocHost(&at, bytes), "pinned allocation");
    return {static_cast<std::byte*>(at), [](std::byte* p) { cudaFreeHost(p); }};
  }

  void copy(const void* from, void* to, std::size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()), "a copy");
  }
  void clear(std::span<float> values) override {
    check(cudaMemsetAsync(values.data(), 0, values.size_bytes(), stream()), "clearing");
  }
  std::unique_ptr<Mark> encode_difference(const quant::CodecSpec& spec, std::span<const float> minuend,
                                          std::span<const float> subtrahend, quant::Feedback feedback,
                                          const quant::Noise& noise, std::span<std::byte> out) override {
    return std::make_unique<GpuMark>(
        passes_.encode_difference(spec, minuend, subtrahend, feedback, noise, out));
  }
  void decode_accumulate(const quant::CodecSpec& spec, std::span<const std::byte> in, float weight,
                         std::span<float> sum) override {
    passes_.decode_accumulate(spec, in, weight, sum);
  }
  void decode_apply(const quant::CodecSpec& spec, std::span<const std::byte> in, const quant::OuterStep& step,
                    std::span<float> theta, std::span<float> velocity, std::span<float> local) override {
    passes_.decode_apply(spec, in, step, theta, velocity, local);
  }
  void products(std::span<const float> x, std::span<const float> y,
                std::span<quant::Products> tiles) override {
    passes_.products(x, y, tiles);
  }
  std::uint64_t digest(std::span<const float> values) override {
    if (!digest_) {
      digest_ = device_memory(sizeof(std::uint64_t));
      host_digest_ = host_memory(sizeof(std::uint64_t));
    }
    auto* sum = reinterpret_cast<std::uint64_t*>(digest_.get());
    check(cudaMemsetAsync(sum, 0, sizeof *sum, stream()), "clearing");
    add_digest(values.data(), values.size(), sum, stream());
    copy(sum, host_digest_.get(), sizeof *sum);
    check(cudaStreamSynchronize(stream()), "a digest");
    return *reinterpret_cast<const std::uint64_t*>(host_digest_.get());
  }
  std::unique_ptr<Mark> mark() override { return std::make_unique<GpuMark>(passes_.mark()); }

  void after_model() override { passes_.after(model_stream_); }
  void before_model() override { passes_.before(model_stream_); }

 private:
  [[nodiscard]] cudaStream_t stream() const { return static_cast<cudaStream_t>(passes_.stream()); }

  int ordinal_;
  void* model_stream_;
  quant::CudaPasses passes_;
  std::shared_ptr<std::byte> digest_, host_digest_;  ///< eight bytes on the device, and on the host
};

}  // namespace

std::unique_ptr<outer_sync::Passes> make_device_passes(int ordinal, void* model_stream) {
  return std::make_unique<GpuPasses>(ordinal, model_stream);
}

}  // namespace isthmus::trainer::cuda
