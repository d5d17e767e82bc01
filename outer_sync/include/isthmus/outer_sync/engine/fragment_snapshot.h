#pragma once
// One fragment's agreed state, as members give it to a replica that joins or catches up.

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
  /// The giver's inner optimizer at that moment (inner_moments.h), if it was asked for; else null.
  std::shared_ptr<const AlignedVector<float>> first_moment{}, second_moment{};
  std::uint64_t inner_steps = 0;  ///< behind these moments
};

}  // namespace isthmus::outer_sync
