#pragma once
// Random token ids where a replica computes, for what is measured or checked without any text.

#include <cstdint>
#include <memory>
#include <vector>

#include "isthmus/data/device.h"
#include "isthmus/data/loader.h"

namespace isthmus::data {

class RandomBatch {
 public:
  /// `sequences` of `seq_len` ids and the one after, each below `vocab`; the same for the same seed.
  RandomBatch(Device& memory, std::int64_t sequences, std::int64_t seq_len, std::int64_t vocab,
              std::uint64_t seed);
  /// Lies on the device, as long as this lives.
  [[nodiscard]] const Batch& get() const { return batch_; }

 private:
  std::unique_ptr<HostBuffer> host_;
  std::unique_ptr<DeviceBuffer> device_;
  std::vector<const std::byte*> rows_;
  Batch batch_;
};

}  // namespace isthmus::data
