#pragma once
// The memory that holds batches, on the host or a GPU, and timing of a GPU's work.

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>

namespace isthmus::data {

/// When the device worked on something, by the host's steady clock.
struct DeviceSpan {
  std::chrono::steady_clock::time_point begin, end;
};

/// Host memory that is copied to the device; pinned if there is a GPU.
class HostBuffer {
 public:
  virtual ~HostBuffer() = default;
  [[nodiscard]] virtual std::byte* data() = 0;
};

/// Memory that the consumer computes on. One thread fills it and another uses it, in turns.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  /// Valid until the next fill().
  [[nodiscard]] virtual std::byte* data() = 0;
  /// Copies the first `bytes` of `from`, a buffer of this device and size, once the work submitted before the
  /// last release() is done. On return the bytes are visible to every stream and the content of `from` is
  /// undefined. Returns when the device copied, which starts after the call if it had to wait for that work.
  virtual DeviceSpan fill(HostBuffer& from, std::size_t bytes) = 0;
  /// Called by the consumer: work submitted so far may still read the buffer, later work will not.
  virtual void release() = 0;
};

/// Measures when the device worked on what the consumer submitted. Used by the consumer's thread.
class DeviceTimer {
 public:
  virtual ~DeviceTimer() = default;
  /// Work submitted to the consumer's stream between begin() and end() is one span; spans do not overlap.
  virtual void begin() = 0;
  virtual void end() = 0;
  /// The oldest finished span that was not returned yet. Never waits. Not called between begin() and end().
  [[nodiscard]] virtual std::optional<DeviceSpan> next() = 0;
};

/// Outlives the buffers and timers made from it.
class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual std::unique_ptr<HostBuffer> host_buffer(std::size_t bytes) = 0;
  [[nodiscard]] virtual std::unique_ptr<DeviceBuffer> device_buffer(std::size_t bytes) = 0;
  /// Null if the device is the host: there, the work takes exactly as long as the call.
  [[nodiscard]] virtual std::unique_ptr<DeviceTimer> timer() = 0;
  /// Whether the device computes on host memory, at any address.
  [[nodiscard]] virtual bool is_host() const = 0;
};

[[nodiscard]] std::unique_ptr<Device> make_cpu_device();

/// GPU number `ordinal`. `consumer_stream` is the cudaStream_t on which the batches are read (libtorch's
/// current stream); copies run on a separate stream. Throws Error(config) if this build has no CUDA or the
/// GPU cannot be used; the buffers' functions throw Error(data) when CUDA reports an error.
[[nodiscard]] std::unique_ptr<Device> make_cuda_device(int ordinal, void* consumer_stream);

}  // namespace isthmus::data
