#pragma once
// Memory and disk of one replica in a plan.

#include <cstdint>
#include <nlohmann/json.hpp>

#include "isthmus/outer_sync/core/layout.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

/// Bytes of one replica; `layout` is the config's. Excludes activations: they depend on trainer.micro_batch,
/// and a run reports their size.
struct PlanMemory {
  std::uint64_t parameters = 0, gradient = 0, moments = 0;                 ///< on the device of each rank
  std::uint64_t global_parameters = 0, outer_momentum = 0, residuals = 0;  ///< the outer loop's, at rank 0
  std::uint64_t evaluation = 0;              ///< copy for evaluating global parameters, at rank 0
  std::uint64_t chunks = 0, max_chunks = 0;  ///< in host memory: usually, and at worst
  /// GPU buffers for encoded chunks in transit; the host pins as much, except for one decoded batch.
  std::uint64_t staging = 0;
  std::uint64_t checkpoint_buffer = 0;           ///< in host memory, from the first checkpoint on
  std::uint64_t device = 0, host = 0, disk = 0;  ///< sums; host includes device if the device is the CPU
  std::uint64_t checkpoint = 0, checkpoints = 0, log = 0;  ///< on disk: one, all that are kept, the round log
  std::uint64_t audit = 0;                                 ///< on disk: records of run.audit
  std::uint64_t audit_most = 0;                            ///< of the replica or reducer with most records
  bool one_memory = true;                                  ///< the device is the CPU
};

[[nodiscard]] PlanMemory plan_memory(const Experiment& experiment, const outer_sync::FragmentLayout& layout);
[[nodiscard]] nlohmann::ordered_json to_json(const PlanMemory& memory);

}  // namespace isthmus::app
