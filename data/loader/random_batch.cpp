#include "isthmus/data/random_batch.h"

#include <cstring>

#include "isthmus/base/random.h"

namespace isthmus::data {

RandomBatch::RandomBatch(Device& memory, std::int64_t sequences, std::int64_t seq_len, std::int64_t vocab,
                         std::uint64_t seed) {
  constexpr std::int64_t max_two_byte_vocab = 1 << 16;
  batch_.width = vocab <= max_two_byte_vocab ? 2 : 4;
  batch_.seq_len = seq_len;
  batch_.together = true;
  const auto count = static_cast<std::size_t>(sequences * (seq_len + 1));
  host_ = memory.host_buffer(count * batch_.width);
  device_ = memory.device_buffer(count * batch_.width);
  for (std::size_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::uint32_t>(random_bits(seed, 3, i) % static_cast<std::uint64_t>(vocab));
    std::memcpy(host_->data() + i * batch_.width, &id, batch_.width);  // little-endian
  }
  device_->fill(*host_, count * batch_.width);
  for (std::int64_t row = 0; row < sequences; ++row)
    rows_.push_back(device_->data() + static_cast<std::size_t>(row) * batch_.row_bytes());
  batch_.rows = rows_;
}

}  // namespace isthmus::data
