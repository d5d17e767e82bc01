#include "isthmus/data/device.h"

#include <cstring>

#include "data_support.h"

namespace isthmus::data {
namespace {

TEST(CpuDevice, FillBringsWhatWasAskedForWithoutACopy) {
  const auto device = make_cpu_device();
  const auto host = device->host_buffer(8);
  const auto buffer = device->device_buffer(8);
  std::memcpy(host->data(), "abcdefgh", 8);
  const auto* made = host->data();
  buffer->fill(*host, 5);
  EXPECT_EQ(std::memcmp(buffer->data(), "abcde", 5), 0);
  EXPECT_EQ(buffer->data(), made);
  buffer->release();
}

TEST(CudaDevice, SaysWhyItCannotBeHad) {
  const auto message =
      error_of(ErrorKind::config, [] { static_cast<void>(make_cuda_device(4711, nullptr)); });
  EXPECT_THAT(message, testing::HasSubstr("GPU 4711"));
}

}  // namespace
}  // namespace isthmus::data
