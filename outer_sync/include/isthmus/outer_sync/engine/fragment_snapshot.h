#pragma once
// One fragment's agreed state, as members send it to a replica that joins or catches up.

#include <cstdint>
#include <memory>

#include "isthmus/base/aligned.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/member.h"

namespace isthmus::outer_sync {

/// All that a replica needs to follow the fragment from this round on. Vectors have the fragment's length.
struct FragmentSnapshot {
  FragmentId fragment = 0;
  protocol::FragmentState state;
  std::shared_ptr<const AlignedVector<float>> theta, velocity;
  /// The donor's inner optimizer moments at that time (inner_moments.h), if requested; otherwise null.
  std::shared_ptr<const AlignedVector<float>> first_moment{}, second_moment{};
  std::uint64_t inner_steps = 0;  ///< steps behind these moments
};

}  // namespace isthmus::outer_sync
