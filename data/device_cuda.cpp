// Pinned host memory, and copies on a stream of their own that events order against the consumer's kernels.

#include <cuda_runtime_api.h>

#include <string>

#include "isthmus/base/error.h"
#include "isthmus/data/device.h"

namespace isthmus::data {
namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(ErrorKind::data,
              std::string("loader: CUDA ") + what + " failed: " + cudaGetErrorString(status));
}

class PinnedBuffer : public HostBuffer {
 public:
  explicit PinnedBuffer(std::size_t bytes) { check(cudaMallocHost(&data_, bytes), "pinned allocation"); }
  ~PinnedBuffer() override { cudaFreeHost(data_); }
  std::byte* data() override { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

/// Waits without spinning: the thread that waits shares its core with the codecs.
class Event {
 public:
  Event() {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync),
          "event creation");
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  [[nodiscard]] cudaEvent_t get() const { return event_; }

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
    check(cudaMalloc(&data_, bytes), "device allocation");
  }
  ~CudaBuffer() override { cudaFree(data_); }
  std::byte* data() override { return static_cast<std::byte*>(data_); }
  void fill(HostBuffer& from, std::size_t bytes) override {
    check(cudaSetDevice(streams_.ordinal),
          "device selection");  // per thread, and the loader's threads are new
    check(cudaStreamWaitEvent(streams_.copy, released_.get(), 0), "wait for the consumer");
    check(cudaMemcpyAsync(data_, from.data(), bytes, cudaMemcpyHostToDevice, streams_.copy),
          "copy to the device");
    check(cudaEventRecord(filled_.get(), streams_.copy), "event record");
    check(cudaEventSynchronize(filled_.get()), "copy to the device");
  }
  void release() override { check(cudaEventRecord(released_.get(), streams_.consumer), "event record"); }

 private:
  Streams streams_;
  Event filled_;
  Event released_;  // not recorded yet counts as done
  void* data_ = nullptr;
};

class CudaDevice : public Device {
 public:
  CudaDevice(int ordinal, void* consumer_stream)
      : streams_{ordinal, nullptr, static_cast<cudaStream_t>(consumer_stream)} {
    auto status = cudaSetDevice(ordinal);
    // Not blocking: it must not wait for the default stream, on which training may run.
    if (status == cudaSuccess) status = cudaStreamCreateWithFlags(&streams_.copy, cudaStreamNonBlocking);
    if (status != cudaSuccess) {
      throw Error(ErrorKind::config,
                  "GPU " + std::to_string(ordinal) + " cannot be used: " + cudaGetErrorString(status));
    }
  }
  ~CudaDevice() override { cudaStreamDestroy(streams_.copy); }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  std::unique_ptr<HostBuffer> host_buffer(std::size_t bytes) override {
    return std::make_unique<PinnedBuffer>(bytes);
  }
  std::unique_ptr<DeviceBuffer> device_buffer(std::size_t bytes) override {
    check(cudaSetDevice(streams_.ordinal), "device selection");
    return std::make_unique<CudaBuffer>(streams_, bytes);
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
