#pragma once
// The held-out sequences: fixed, evenly spaced windows of the held-out split, copied to the device once.

#include <cstdint>
#include <memory>
#include <vector>

#include "isthmus/data/corpus.h"
#include "isthmus/data/device.h"
#include "isthmus/data/loader.h"

namespace isthmus::data {

class HeldOut {
 public:
  /// Holds at most `sequences` windows (fewer if the split has fewer; none if the corpus holds nothing out),
  /// in batches of `batch`. In a mixture each data set contributes by its weight, as far as it has windows.
  HeldOut(const Corpus& corpus, std::int64_t seq_len, std::int64_t sequences, std::int64_t batch,
          Device& device);
  [[nodiscard]] std::int64_t sequences() const { return sequences_; }
  /// One member's sequences, [m S / M, (m + 1) S / M) of all S, regardless of the batch size of other
  /// members. The last batch may be smaller. Sequence and epoch of these batches are 0.
  [[nodiscard]] std::vector<Batch> share(std::uint64_t member, std::uint64_t members) const;

 private:
  std::int64_t seq_len_, batch_, sequences_ = 0;
  std::uint32_t width_;
  std::unique_ptr<DeviceBuffer> buffer_;  ///< one row for each sequence
  std::vector<const std::byte*> rows_;
};

}  // namespace isthmus::data
