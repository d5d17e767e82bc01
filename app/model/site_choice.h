#pragma once
// Which of the checkpoints that sites offer is the run's model. Pure.

#include <cstddef>
#include <span>
#include <vector>

#include "launch/sites/site_models.h"

namespace isthmus::app {

/// Checkpoints of one step with the same state.
struct CommonCheckpoint {
  std::uint64_t step = 0;
  struct Place {
    std::size_t site = 0;  ///< position in the argument
    SiteCheckpoint checkpoint;
  };
  std::vector<Place> places;  ///< where it is
  std::size_t workers = 0;    ///< workers that have any checkpoint
};

/// In the order in which to try them: newest first, and common ones, which at least half of the workers have,
/// before all others. A worker that left the run long ago has old ones only, and must not make them the
/// model.
[[nodiscard]] std::vector<CommonCheckpoint> common_checkpoints(
    std::span<const std::vector<SiteCheckpoint>> of_sites);

}  // namespace isthmus::app
