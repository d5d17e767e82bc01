#pragma once
// Random token ids on a replica's device, for measurements and checks that need no text.

#include <cstdint>
#include <memory>
#include <vector>

#include "isthmus/data/device.h"
#include "isthmus/data/loader.h"

namespace isthmus::data {

class RandomBatch {
 public:
  /// `sequences` rows of `seq_len` + 1 ids below `vocab`, which depend only on the seed.
  RandomBatch(Device& memory, std::int64_t sequences, std::int64_t seq_len, std::int64_t vocab,
              std::uint64_t seed);
  /// On the device; valid as long as this object.
  [[nodiscard]] const Batch& get() const { return batch_; }

 private:
  std::unique_ptr<HostBuffer> host_;
  std::unique_ptr<DeviceBuffer> device_;
  std::vector<const std::byte*> rows_;
  Batch batch_;
};

}  // namespace isthmus::data
