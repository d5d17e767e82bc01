#include "isthmus/outer_sync/log/fingerprint.h"

namespace isthmus::outer_sync {

Digest fingerprint_of(std::span<const log::LoggedTensor> tensors, const FragmentLayout& layout) {
  Hasher hasher;
  for (const auto& tensor : tensors) {
    hasher.update(std::uint64_t{tensor.name.size()}).update(tensor.name);
    hasher.update(std::uint64_t{tensor.shape.size()});
    for (const auto extent : tensor.shape) hasher.update(static_cast<std::uint64_t>(extent));
    hasher.update(tensor.range.begin).update(tensor.range.size);
  }
  for (const auto& fragment : layout.fragments()) hasher.update(fragment.begin).update(fragment.size);
  // Only then, so that it stays the same for layouts of parameters alone.
  if (layout.averaged_fragments() > 0) hasher.update(std::uint64_t{layout.averaged_fragments()});
  return hasher.finish();
}

}  // namespace isthmus::outer_sync
