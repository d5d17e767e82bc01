#pragma once
// One window as a row of inputs and a row of targets.

#include <cstdint>
#include <cstring>
#include <span>

#include "isthmus/data/corpus.h"

namespace isthmus::data {

/// inputs and targets hold seq_len ids each.
inline void read_window(const Corpus& corpus, Split split, std::uint64_t window, std::size_t seq_len,
                        std::int64_t* inputs, std::int64_t* targets) {
  const auto begin = window * seq_len;
  corpus.read(split, begin, {inputs, seq_len});
  std::memcpy(targets, inputs + 1, (seq_len - 1) * sizeof *targets);
  corpus.read(split, begin + seq_len, {targets + seq_len - 1, 1});
}

/// Bytes of a batch's inputs and targets, which stand in one buffer one after the other.
inline std::size_t batch_bytes(std::int64_t sequences, std::int64_t seq_len) {
  return static_cast<std::size_t>(sequences) * static_cast<std::size_t>(seq_len) * 2 * sizeof(std::int64_t);
}

}  // namespace isthmus::data
