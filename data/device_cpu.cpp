#include <cstring>
#include <vector>

#include "isthmus/data/device.h"

namespace isthmus::data {
namespace {

class PlainHostBuffer : public HostBuffer {
 public:
  explicit PlainHostBuffer(std::size_t bytes) : bytes_(bytes) {}
  std::byte* data() override { return bytes_.data(); }

 private:
  std::vector<std::byte> bytes_;
};

class PlainDeviceBuffer : public DeviceBuffer {
 public:
  explicit PlainDeviceBuffer(std::size_t bytes) : bytes_(bytes) {}
  std::byte* data() override { return bytes_.data(); }
  void fill(HostBuffer& from, std::size_t bytes) override { std::memcpy(bytes_.data(), from.data(), bytes); }
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
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace isthmus::data
