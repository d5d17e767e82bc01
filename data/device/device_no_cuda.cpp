#include "isthmus/base/error.h"
#include "isthmus/data/device.h"

namespace isthmus::data {

std::unique_ptr<Device> make_cuda_device(int ordinal, void*) {
  throw Error(ErrorKind::config,
              "GPU " + std::to_string(ordinal) +
                  " was requested, but this build has no CUDA: build with -DISTHMUS_CUDA=on or use the CPU");
}

}  // namespace isthmus::data
