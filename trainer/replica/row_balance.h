#pragma once
// Deals the rows of a batch to the ranks of a replica so that all finish at about the same time, as in
// ByteScale (Ge et al., arXiv 2502.21231): attention within documents takes time in proportion to the squares
// of their lengths. Pure functions; used by SiteReplica.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "isthmus/data/loader.h"

namespace isthmus::trainer {

/// The work of attention for each row of a batch in host memory, in squared tokens. `separator` ends
/// documents.
[[nodiscard]] std::vector<double> attention_work(const data::Batch& batch, std::int64_t separator);

/// Row indices, part by part. The parts have equal numbers of rows, in ascending order, and about equal sums
/// of work: the row with the most work goes to the part with the least, as long as that has room.
/// `work.size()` must be a multiple of `parts`.
[[nodiscard]] std::vector<std::size_t> balanced_rows(std::span<const double> work, std::size_t parts);

}  // namespace isthmus::trainer
