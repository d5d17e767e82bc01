#include <fmt/format.h>

#include "isthmus/base/error.h"
#include "isthmus/data/device.h"

namespace isthmus::data {

std::unique_ptr<Device> make_cuda_device(int ordinal, void*) {
  config_error(fmt::format(
      "GPU {} was requested, but this build has no CUDA: build with -DISTHMUS_CUDA=on or use the CPU",
      ordinal));
}

}  // namespace isthmus::data
