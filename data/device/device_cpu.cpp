#include <cassert>
#include <vector>

#include "isthmus/data/device.h"

namespace isthmus::data {
namespace {

class PlainHostBuffer : public HostBuffer {
 public:
  explicit PlainHostBuffer(std::size_t bytes) : bytes_(bytes) {}
  std::byte* data() override { return bytes_.data(); }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// The device's memory is the host's: fill() swaps buffers and copies nothing.
class PlainDeviceBuffer : public DeviceBuffer {
 public:
  explicit PlainDeviceBuffer(std::size_t bytes) : bytes_(bytes) {}
  std::byte* data() override { return bytes_.data(); }
  DeviceSpan fill(HostBuffer& from, std::size_t bytes) override {
    const auto now = std::chrono::steady_clock::now();
    auto& made = dynamic_cast<PlainHostBuffer&>(from).bytes();
    assert(made.size() == bytes_.size() && bytes <= made.size());
    static_cast<void>(bytes);
    bytes_.swap(made);
    return {now, now};
  }
  void release() override {}  // work on the CPU is done when its call returns

 private:
  std::vector<std::byte> bytes_;
};

class CpuDevice : public Device {
 public:
  std::unique_ptr<HostBuffer> host_buffer(std::size_t bytes) override {
    return std::make_unique<PlainHostBuffer>(bytes);
  }
  std::unique_ptr<DeviceBuffer> device_buffer(std::size_t bytes) override {
    return std::make_unique<PlainDeviceBuffer>(bytes);
  }
  std::unique_ptr<DeviceTimer> timer() override { return nullptr; }
  bool is_host() const override { return true; }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace isthmus::data
