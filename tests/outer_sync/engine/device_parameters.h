#pragma once
// Local parameters for tests of an outer state on a device.

#include <atomic>
#include <span>
#include <vector>

#include "isthmus/outer_sync/engine/local_parameters.h"
#include "replicas.h"

namespace isthmus::outer_sync {

/// Plain parameters that pass for a device's.
class EmulatedParameters final : public DeviceParameters {
 public:
  explicit EmulatedParameters(PlainParameters& plain) : plain_(plain) {}
  std::span<const float> read(Range range) override { return plain_.read(range); }
  std::span<float> modify(Range range) override { return plain_.modify(range); }
  void modified(Range range) override { plain_.modified(range); }
  std::span<float> device_values(Range range) override {
    ++model_work;
    return plain_.modify(range);
  }
  void modified_on_device(Range range) override { refreshed.push_back(range); }

  std::vector<Range> refreshed;
  /// Queued by the model since passes last waited for it. EmulatedDevice checks that they wait.
  static inline std::atomic<int> model_work = 0;

 private:
  PlainParameters& plain_;
};

}  // namespace isthmus::outer_sync
