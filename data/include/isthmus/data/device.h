#pragma once
// The memory batches are put in: the host's own, or a GPU's. And when that GPU was at work.

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>

namespace isthmus::data {

/// When the device was at work on something, by the host's steady clock.
struct DeviceSpan {
  std::chrono::steady_clock::time_point begin, end;
};

/// Memory that copies to the device start from; pinned where there is a GPU.
class HostBuffer {
 public:
  virtual ~HostBuffer() = default;
  [[nodiscard]] virtual std::byte* data() = 0;
};

/// Memory the consumer computes on. Filled by one thread and used by another, by turns.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  /// Where it lies from one fill() to the next.
  [[nodiscard]] virtual std::byte* data() = 0;
  /// Brings the first `bytes` of `from`, a buffer of this device and of the same size, here, after the work
  /// that was submitted before the last release() is done. The bytes are there, for every stream, when it
  /// returns; what `from` holds then is of no use. Returns when the device copied, which is later than the
  /// call where that work took its time.
  virtual DeviceSpan fill(HostBuffer& from, std::size_t bytes) = 0;
  /// Called by the consumer: work it has submitted until now may still read the buffer, later work will not.
  virtual void release() = 0;
};

/// Tells when the device was at work on what its consumer has submitted. Used by the consumer's thread.
class DeviceTimer {
 public:
  virtual ~DeviceTimer() = default;
  /// What is submitted to the consumer's stream between these two is one span; spans do not overlap.
  virtual void begin() = 0;
  virtual void end() = 0;
  /// The oldest span that the device is through with and that was not told yet. Never waits. Not called
  /// between these two.
  [[nodiscard]] virtual std::optional<DeviceSpan> next() = 0;
};

/// Outlives the buffers and timers made from it.
class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual std::unique_ptr<HostBuffer> host_buffer(std::size_t bytes) = 0;
  [[nodiscard]] virtual std::unique_ptr<DeviceBuffer> device_buffer(std::size_t bytes) = 0;
  /// Nothing where the device is the host: a call's own time is its work's.
  [[nodiscard]] virtual std::unique_ptr<DeviceTimer> timer() = 0;
  /// It computes on the host's memory, wherever in it.
  [[nodiscard]] virtual bool is_host() const = 0;
};

[[nodiscard]] std::unique_ptr<Device> make_cpu_device();

/// GPU number `ordinal`. `consumer_stream` is the cudaStream_t whose kernels read the batches (libtorch's
/// current stream); copies run on a stream of their own. Throws Error(config) if this build has no CUDA or
/// the GPU cannot be used; the buffers' functions throw Error(data) when CUDA reports a fault.
[[nodiscard]] std::unique_ptr<Device> make_cuda_device(int ordinal, void* consumer_stream);

}  // namespace isthmus::data
