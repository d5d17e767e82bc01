#pragma once
// The held-out sequences: fixed, evenly spaced windows of the held-out split, put on the device once.

#include <cstdint>
#include <memory>
#include <vector>

#include "isthmus/data/corpus.h"
#include "isthmus/data/device.h"
#include "isthmus/data/loader.h"

namespace isthmus::data {

class HeldOut {
 public:
  /// At most `sequences` windows (fewer if the split has fewer), given out in batches of `batch`. None if the
  /// corpus holds nothing out. Of a mixture, as many of each data set as its weight says, where it has them.
  HeldOut(const Corpus& corpus, std::int64_t seq_len, std::int64_t sequences, std::int64_t batch,
          Device& device);
  [[nodiscard]] std::int64_t sequences() const { return sequences_; }
  /// One member's sequences, in batches of which the last may be smaller: [m S / M, (m + 1) S / M) of all S,
  /// whatever batches others make. The batches' sequence and epoch are 0.
  [[nodiscard]] std::vector<Batch> share(std::uint64_t member, std::uint64_t members) const;

 private:
  std::int64_t seq_len_, batch_, sequences_ = 0;
  std::uint32_t width_;
  std::unique_ptr<DeviceBuffer> buffer_;  ///< one row for each sequence
  std::vector<const std::byte*> rows_;
};

}  // namespace isthmus::data
