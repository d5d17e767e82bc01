#pragma once
// The held-out batches: fixed, evenly spaced windows of the held-out split, put on the device once.

#include <cstdint>
#include <memory>
#include <vector>

#include "isthmus/data/corpus.h"
#include "isthmus/data/device.h"
#include "isthmus/data/loader.h"

namespace isthmus::data {

class HeldOut {
 public:
  /// At most `sequences` windows (fewer if the split has fewer) in batches of `batch`; the last one may be
  /// smaller. Empty if the corpus holds nothing out. The batches' step and epoch are 0.
  HeldOut(const Corpus& corpus, std::int64_t seq_len, std::int64_t sequences, std::int64_t batch,
          Device& device);
  [[nodiscard]] const std::vector<Batch>& batches() const { return batches_; }

 private:
  std::unique_ptr<DeviceBuffer> buffer_;
  std::vector<Batch> batches_;
};

}  // namespace isthmus::data
