#pragma once
// A count sketch of a vector (Charikar, Chen, Farach-Colton: Finding frequent items in data streams, 2002):
// each value is added to one of 32 sums, with a sign. Every block of 32 values has a pseudorandom rotation
// and pseudorandom signs. The squared distance of two sketches is that of the two vectors, with a standard
// deviation of a quarter of it (sqrt(2 / 32)). So two machines can compare vectors that only one of them has.

#include <cstdint>
#include <span>

#include "isthmus/outer_sync/protocol/receipts.h"

namespace isthmus::outer_sync {

/// Sketch of a chunk's decoded values. Chunks and rounds have different signs, so that errors of the estimate
/// average out when sketches of several chunks are compared.
[[nodiscard]] protocol::Sketch sketch_of(std::span<const float> values, ChunkId chunk, protocol::Round round);

/// The sum of the sketches of several chunks is a sketch of all their values.
void add_sketch(protocol::Sketch& sum, const protocol::Sketch& sketch);

/// |a - b| / |b|, estimated from the sketches of the same chunks in the same order. 0 if both are 0; infinite
/// if only b is, or if a value is not finite.
[[nodiscard]] double relative_distance(std::span<const protocol::Sketch> a,
                                       std::span<const protocol::Sketch> b);

}  // namespace isthmus::outer_sync
