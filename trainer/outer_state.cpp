#include "isthmus/trainer/outer_state.h"

#include "cuda/device_passes.h"
#include "isthmus/outer_sync/device_outer_state.h"

namespace isthmus::trainer {

std::unique_ptr<outer_sync::OuterState> make_outer_state(Replica& replica,
                                                         const outer_sync::protocol::CodecPlan& codecs) {
  const auto& layout = replica.table().layout();
  if (replica.device() == Device::cpu)
    return std::make_unique<outer_sync::HostOuterState>(layout, replica, codecs.error_feedback);
  // The first GPU, and its default stream: where libtorch computes if nobody tells it otherwise.
  return std::make_unique<outer_sync::DeviceOuterState>(layout, codecs, replica,
                                                        cuda::make_device_passes(0, nullptr));
}

}  // namespace isthmus::trainer
