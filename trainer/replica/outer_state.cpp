#include "isthmus/trainer/outer_state.h"

#include "cuda/device_passes.h"
#include "isthmus/outer_sync/config/codec_plan.h"

namespace isthmus::trainer {

std::unique_ptr<outer_sync::OuterState> make_outer_state(Replica& replica,
                                                         const outer_sync::OuterConfig& config) {
  const auto& layout = replica.table().layout();
  if (replica.device() == Device::cpu)
    return std::make_unique<outer_sync::OuterState>(layout, replica, config.sender_feedback());
  // The first GPU and its default stream, which libtorch uses by default.
  return std::make_unique<outer_sync::OuterState>(layout, outer_sync::codec_plan(config), replica,
                                                  cuda::make_device_passes(0, nullptr));
}

std::unique_ptr<outer_sync::Passes> make_gpu_passes(int gpu) {
  return cuda::make_device_passes(gpu, nullptr);
}

}  // namespace isthmus::trainer
