// A GPU: pinned host memory, and copies on a separate stream, ordered against the consumer's kernels by
// events.

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/data/device.h"

namespace isthmus::data {
namespace {

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  data_error(std::string("loader: CUDA ") + what + " failed: " + cudaGetErrorString(status));
}

class PinnedBuffer : public HostBuffer {
 public:
  explicit PinnedBuffer(std::size_t bytes) { check_cuda(cudaMallocHost(&data_, bytes), "pinned allocation"); }
  ~PinnedBuffer() override { cudaFreeHost(data_); }
  std::byte* data() override { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

using Clock = std::chrono::steady_clock;

/// Waits without spinning: the waiting thread shares its core with the codecs.
class Event {
 public:
  Event() { check_cuda(cudaEventCreateWithFlags(&event_, cudaEventBlockingSync), "event creation"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  [[nodiscard]] cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) const { check_cuda(cudaEventRecord(event_, stream), "event record"); }
  /// Time between two completed events, by the device's clock.
  [[nodiscard]] Clock::duration since(const Event& earlier) const {
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, earlier.get(), event_), "event time");
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double, std::milli>(static_cast<double>(milliseconds)));
  }

 private:
  cudaEvent_t event_ = nullptr;
};

struct Streams {
  int ordinal;
  cudaStream_t copy;
  cudaStream_t consumer;
};

class CudaBuffer : public DeviceBuffer {
 public:
  CudaBuffer(const Streams& streams, std::size_t bytes) : streams_(streams) {
    check_cuda(cudaMalloc(&data_, bytes), "device allocation");
  }
  ~CudaBuffer() override { cudaFree(data_); }
  std::byte* data() override { return static_cast<std::byte*>(data_); }
  DeviceSpan fill(HostBuffer& from, std::size_t bytes) override {
    check_cuda(cudaSetDevice(streams_.ordinal),
               "device selection");  // the device is set per thread
    check_cuda(cudaStreamWaitEvent(streams_.copy, released_.get(), 0), "wait for the consumer");
    begun_.record(streams_.copy);
    check_cuda(cudaMemcpyAsync(data_, from.data(), bytes, cudaMemcpyHostToDevice, streams_.copy),
               "copy to the device");
    filled_.record(streams_.copy);
    check_cuda(cudaEventSynchronize(filled_.get()), "copy to the device");
    const auto now = Clock::now();
    return {now - filled_.since(begun_), now};
  }
  void release() override { released_.record(streams_.consumer); }

 private:
  Streams streams_;
  Event begun_, filled_;
  Event released_;  // an event that was never recorded counts as done
  void* data_ = nullptr;
};

/// Spans are placed on the host's clock relative to the end of the previous span, which is known on both
/// clocks. (CUDA returns the time between two events as float milliseconds, too coarse for a long time.) The
/// clocks drift apart by a few millionths.
class CudaTimer : public DeviceTimer {
 public:
  explicit CudaTimer(cudaStream_t stream) : stream_(stream), known_(std::make_unique<Event>()) {
    known_->record(stream_);
    while (!is_over(*known_)) {  // spins: a late wake-up would shift all spans
    }
    known_at_ = Clock::now();
  }
  void begin() override {
    spans_.push_back({take(), take()});
    spans_.back().begin->record(stream_);
  }
  void end() override { spans_.back().end->record(stream_); }
  std::optional<DeviceSpan> next() override {
    if (spans_.empty()) return std::nullopt;
    auto& span = spans_.front();
    if (!is_over(*span.end)) return std::nullopt;
    DeviceSpan out;
    out.begin = known_at_ + span.begin->since(*known_);
    out.end = out.begin + span.end->since(*span.begin);
    std::swap(known_, span.end);
    known_at_ = out.end;
    free_.push_back(std::move(span.begin));
    free_.push_back(std::move(span.end));
    spans_.pop_front();
    return out;
  }

 private:
  struct Span {
    std::unique_ptr<Event> begin, end;
  };
  static bool is_over(const Event& event) {
    const auto status = cudaEventQuery(event.get());
    if (status != cudaErrorNotReady) check_cuda(status, "event query");
    return status == cudaSuccess;
  }
  std::unique_ptr<Event> take() {
    if (free_.empty()) return std::make_unique<Event>();
    auto event = std::move(free_.back());
    free_.pop_back();
    return event;
  }

  cudaStream_t stream_;
  std::unique_ptr<Event> known_;
  Clock::time_point known_at_;
  std::deque<Span> spans_;  ///< not returned yet
  std::vector<std::unique_ptr<Event>> free_;
};

class CudaDevice : public Device {
 public:
  CudaDevice(int ordinal, void* consumer_stream)
      : streams_{ordinal, nullptr, static_cast<cudaStream_t>(consumer_stream)} {
    auto status = cudaSetDevice(ordinal);
    // Non-blocking: it must not wait for the default stream, on which training may run.
    if (status == cudaSuccess) status = cudaStreamCreateWithFlags(&streams_.copy, cudaStreamNonBlocking);
    if (status != cudaSuccess) {
      config_error(fmt::format("GPU {} cannot be used: {}", ordinal, cudaGetErrorString(status)));
    }
  }
  ~CudaDevice() override { cudaStreamDestroy(streams_.copy); }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  std::unique_ptr<HostBuffer> host_buffer(std::size_t bytes) override {
    return std::make_unique<PinnedBuffer>(bytes);
  }
  std::unique_ptr<DeviceBuffer> device_buffer(std::size_t bytes) override {
    check_cuda(cudaSetDevice(streams_.ordinal), "device selection");
    return std::make_unique<CudaBuffer>(streams_, bytes);
  }
  std::unique_ptr<DeviceTimer> timer() override {
    check_cuda(cudaSetDevice(streams_.ordinal), "device selection");
    return std::make_unique<CudaTimer>(streams_.consumer);
  }
  bool is_host() const override { return false; }

 private:
  Streams streams_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(int ordinal, void* consumer_stream) {
  return std::make_unique<CudaDevice>(ordinal, consumer_stream);
}

}  // namespace isthmus::data
