#pragma once
// What two replicas must have in common for the flat buffer of one to fit the other.

#include <span>

#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/log/log_header.h"

namespace isthmus::outer_sync {

/// Digest of the names, shapes and places of all tensors, in buffer order, and of the fragments: whoever
/// trains them, and with what.
[[nodiscard]] Digest fingerprint_of(std::span<const log::LoggedTensor> tensors, const FragmentLayout& layout);

}  // namespace isthmus::outer_sync
