#pragma once
// Identifies a flat buffer's layout: two replicas with equal fingerprints can exchange their buffers.

#include <span>

#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/log/log_header.h"

namespace isthmus::outer_sync {

/// Digest of the names, shapes and places of all tensors, in buffer order, and of the fragments. It does not
/// depend on how they are trained.
[[nodiscard]] Digest fingerprint_of(std::span<const log::LoggedTensor> tensors, const FragmentLayout& layout);

}  // namespace isthmus::outer_sync
