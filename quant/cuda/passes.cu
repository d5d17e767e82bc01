// Runs the passes' kernels on a GPU's stream, with a pool of events that track their progress.

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "formats.h"
#include "isthmus/base/error.h"
#include "isthmus/quant/cuda_passes.h"
#include "passes_table.h"

#define ISTHMUS_LANES __device__ __forceinline__
#define ISTHMUS_UNROLL _Pragma("unroll")

namespace isthmus::quant {
namespace {

#include "scalar_lanes-inl.h"
// after it
#include "arithmetic-inl.h"
// after both
#include "kernels-inl.h"
#include "products-inl.h"

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(ErrorKind::data,
              std::string("codec: ") + what + " on the GPU failed: " + cudaGetErrorString(status));
}

/// Selects a GPU for the calling thread until the end of the scope.
class Selected {
 public:
  explicit Selected(int ordinal) noexcept : had_one_(cudaGetDevice(&before_) == cudaSuccess) {
    status_ = cudaSetDevice(ordinal);
  }
  ~Selected() {
    if (had_one_) cudaSetDevice(before_);
  }
  Selected(const Selected&) = delete;
  Selected& operator=(const Selected&) = delete;
  [[nodiscard]] cudaError_t status() const { return status_; }

 private:
  int before_ = 0;
  bool had_one_;
  cudaError_t status_;
};

class Stream {
 public:
  Stream() {
    int lowest = 0;
    int highest = 0;
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "stream creation");
    // Non-blocking: it must not wait for the default stream, on which training may run.
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest), "stream creation");
  }
  ~Stream() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  [[nodiscard]] cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// An event for which the host waits without spinning.
class Event {
 public:
  Event() {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync),
          "event creation");
  }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  [[nodiscard]] cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Indices of the first bad elements: on the device, where kernels lower them, and a copy on the host.
class Indices {
 public:
  static constexpr unsigned long long none = ~0ULL;

  explicit Indices(std::size_t count) {
    check(cudaMalloc(&device_, count * sizeof none), "allocation");
    const auto status = cudaMallocHost(&host_, count * sizeof none);
    if (status != cudaSuccess) cudaFree(device_);
    check(status, "pinned allocation");
    std::fill_n(host_, count, none);
  }
  ~Indices() {
    cudaFreeHost(host_);
    cudaFree(device_);
  }
  Indices(const Indices&) = delete;
  Indices& operator=(const Indices&) = delete;

  [[nodiscard]] unsigned long long* device(std::size_t i) const { return device_ + i; }
  [[nodiscard]] unsigned long long& host(std::size_t i) const { return host_[i]; }
  cudaError_t reset(std::size_t first, std::size_t count, cudaStream_t stream) const noexcept {
    std::fill_n(host_ + first, count, none);
    return cudaMemsetAsync(device_ + first, 0xff, count * sizeof none, stream);
  }
  void fetch(std::size_t i, cudaStream_t stream) const {
    check(cudaMemcpyAsync(host_ + i, device_ + i, sizeof none, cudaMemcpyDeviceToHost, stream), "a pass");
  }

 private:
  unsigned long long* device_ = nullptr;
  unsigned long long* host_ = nullptr;
};

struct Launcher {
  unsigned thread_blocks;
  cudaStream_t stream;
  template <class Kernel, class... Arguments>
  void operator()(Kernel* kernel, const Arguments&... arguments) const {
    if (thread_blocks == 0) return;
    kernel<<<thread_blocks, threads, 0, stream>>>(arguments...);
    check(cudaGetLastError(), "a pass");
  }
};

}  // namespace

bool cuda_available() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count > 0;
  static_cast<void>(cudaGetLastError());  // clears the error for later callers
  return false;
}

/// The resources of one GPU.
class CudaPasses::Gpu {
 public:
  explicit Gpu(const CudaPassesOptions& options)
      : ordinal_(options.ordinal), thread_blocks_(options.thread_blocks), indices_(options.marks) {
    assert(thread_blocks_ > 0 && options.marks > 0);
    for (std::size_t i = 0; i < options.marks; ++i) {
      events_.emplace_back();
      free_.push_back(i);
    }
    check(indices_.reset(0, options.marks, stream_.get()), "preparation");
  }

  [[nodiscard]] int ordinal() const { return ordinal_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_.get(); }
  [[nodiscard]] cudaEvent_t event(std::size_t place) const { return events_[place].get(); }

  [[nodiscard]] std::size_t take_place() {
    assert(!free_.empty());  // more marks than CudaPassesOptions::marks
    const auto place = free_.back();
    free_.pop_back();
    return place;
  }
  /// Resets the place, so that the next pass to use it finds no index there.
  void give_back(std::size_t place) noexcept {
    const Selected selected(ordinal_);
    cudaEventSynchronize(event(place));
    if (indices_.host(place) != Indices::none) indices_.reset(place, 1, stream());
    free_.push_back(place);  // has capacity for all
  }
  void record(std::size_t place) const { check(cudaEventRecord(event(place), stream()), "a pass"); }

  /// For a pass that is done.
  [[nodiscard]] std::optional<std::size_t> first_bad(std::size_t place) const {
    const auto index = indices_.host(place);
    return index == Indices::none ? std::nullopt : std::optional<std::size_t>(index);
  }

  /// Queues the kernel, the copy of its report and the event; returns their place.
  [[nodiscard]] std::size_t encode(const CodecSpec& spec, const Encoding& e) {
    const Selected selected(ordinal_);
    const auto place = take_place();
    launch_encode(spec, e, indices_.device(place), launcher(e.elements));
    indices_.fetch(place, stream());
    record(place);
    return place;
  }
  template <class Use>
  void decode(const CodecSpec& spec, std::span<const std::byte> in, std::size_t elements,
              const Use& use) const {
    assert(problem_of(spec).empty() && in.size() == encoded_size(spec, elements));
    const Selected selected(ordinal_);
    launch_decode(spec, in.data(), elements, use, launcher(elements));
  }

  void products(std::span<const float> x, std::span<const float> y, std::span<Products> tiles) const {
    assert(x.size() == y.size() && tiles.size() == (x.size() + products_tile - 1) / products_tile);
    const Selected selected(ordinal_);
    launcher(x.size())(products_kernel, x.data(), y.data(), x.size(), tiles.data());
  }

  /// Work queued in `later` from now on runs after the work already in `earlier`.
  void order(cudaStream_t earlier, cudaStream_t later) const {
    const Selected selected(ordinal_);  // a null stream is the current GPU's
    check(cudaEventRecord(order_.get(), earlier), "event record");
    check(cudaStreamWaitEvent(later, order_.get(), 0), "event wait");
  }

 private:
  /// Each thread block takes tiles until none are left.
  [[nodiscard]] Launcher launcher(std::size_t elements) const {
    const auto tiles = (elements + tile_size - 1) / tile_size;
    return {static_cast<unsigned>(std::min(tiles, thread_blocks_)), stream()};
  }

  int ordinal_;
  std::size_t thread_blocks_;
  Indices indices_;
  std::vector<Event> events_;
  std::vector<std::size_t> free_;
  Event order_;    // a wait uses the latest recording before it, so one event suffices
  Stream stream_;  // last, so destroyed first: its work uses the other members
};

CudaPasses::CudaPasses(const CudaPassesOptions& options) {
  const Selected selected(options.ordinal);
  if (selected.status() != cudaSuccess) {
    throw Error(ErrorKind::config, "GPU " + std::to_string(options.ordinal) +
                                       " cannot be used: " + cudaGetErrorString(selected.status()));
  }
  gpu_ = std::make_unique<Gpu>(options);
}
CudaPasses::~CudaPasses() {
  const Selected selected(gpu_->ordinal());
  gpu_.reset();
}

void CudaPasses::after(void* stream) { gpu_->order(static_cast<cudaStream_t>(stream), gpu_->stream()); }
void CudaPasses::before(void* stream) { gpu_->order(gpu_->stream(), static_cast<cudaStream_t>(stream)); }
void* CudaPasses::stream() const { return gpu_->stream(); }

CudaMark CudaPasses::mark() {
  const auto place = gpu_->take_place();
  gpu_->record(place);
  return {*this, place};
}

CudaMark CudaPasses::encode(const CodecSpec& spec, std::span<const float> x, Feedback feedback,
                            const Noise& noise, std::span<std::byte> out) {
  const Encoding e{.a = x.data(), .noise = noise, .elements = x.size()};
  return {*this, gpu_->encode(spec, completed(spec, e, feedback, out))};
}

CudaMark CudaPasses::encode_difference(const CodecSpec& spec, std::span<const float> minuend,
                                       std::span<const float> subtrahend, Feedback feedback,
                                       const Noise& noise, std::span<std::byte> out) {
  assert(minuend.size() == subtrahend.size());
  const Encoding e{.input = Encoding::Input::difference,
                   .a = minuend.data(),
                   .b = subtrahend.data(),
                   .noise = noise,
                   .elements = minuend.size()};
  return {*this, gpu_->encode(spec, completed(spec, e, feedback, out))};
}

CudaMark CudaPasses::encode_quotient(const CodecSpec& spec, std::span<const float> sum, float divisor,
                                     Feedback feedback, const Noise& noise, std::span<std::byte> out) {
  const Encoding e{.input = Encoding::Input::quotient,
                   .a = sum.data(),
                   .divisor = divisor,
                   .noise = noise,
                   .elements = sum.size()};
  return {*this, gpu_->encode(spec, completed(spec, e, feedback, out))};
}

void CudaPasses::decode(const CodecSpec& spec, std::span<const std::byte> in, std::span<float> out) {
  gpu_->decode(spec, in, out.size(), CopyTo{out.data()});
}

void CudaPasses::decode_accumulate(const CodecSpec& spec, std::span<const std::byte> in, float weight,
                                   std::span<float> sum) {
  gpu_->decode(spec, in, sum.size(), AddTo{weight, sum.data()});
}

void CudaPasses::decode_apply(const CodecSpec& spec, std::span<const std::byte> in, const OuterStep& step,
                              std::span<float> theta, std::span<float> velocity, std::span<float> local) {
  assert(theta.size() == velocity.size() && (local.empty() || local.size() == theta.size()));
  gpu_->decode(spec, in, theta.size(),
               ApplyTo{step, theta.data(), velocity.data(), local.empty() ? nullptr : local.data()});
}

void CudaPasses::products(std::span<const float> x, std::span<const float> y, std::span<Products> tiles) {
  gpu_->products(x, y, tiles);
}

CudaMark::CudaMark(CudaMark&& other) noexcept
    : passes_(std::exchange(other.passes_, nullptr)), place_(other.place_) {}

CudaMark::~CudaMark() {
  if (passes_ != nullptr) passes_->gpu_->give_back(place_);
}

bool CudaMark::is_done() const {
  const auto status = cudaEventQuery(passes_->gpu_->event(place_));
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // clears the error for later callers
    return false;
  }
  check(status, "a pass");
  return true;
}

std::optional<std::size_t> CudaMark::wait() {
  check(cudaEventSynchronize(passes_->gpu_->event(place_)), "a pass");
  return passes_->gpu_->first_bad(place_);
}

void CudaMark::before(void* stream) const {
  const Selected selected(passes_->gpu_->ordinal());
  check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), passes_->gpu_->event(place_), 0),
        "event wait");
}

}  // namespace isthmus::quant
