#pragma once
// Interface to a replica's local parameters: one flat fp32 buffer, in fragment order. On a CPU, `read` and
// `modify` return the storage itself; a device copies the range through pinned memory.

#include <span>

#include "isthmus/outer_sync/core/layout.h"

namespace isthmus::outer_sync {

class LocalParameters {
 public:
  virtual ~LocalParameters() = default;
  /// Current values of the range; valid until the next call.
  [[nodiscard]] virtual std::span<const float> read(Range range) = 0;
  /// Current values of the range, to be changed in place. `modified` must be called next: it makes the change
  /// visible to the model (device copy, bf16 twin).
  [[nodiscard]] virtual std::span<float> modify(Range range) = 0;
  virtual void modified(Range range) = 0;
};

/// Local parameters in device memory.
class DeviceParameters : public LocalParameters {
 public:
  /// The range in device memory; addresses never change. Queues what the model must do first.
  [[nodiscard]] virtual std::span<float> device_values(Range range) = 0;
  /// Call after changing this range on the device: makes the change visible to the model (bf16 twin). The
  /// change must be ordered before the model's next computation.
  virtual void modified_on_device(Range range) = 0;
};

}  // namespace isthmus::outer_sync
