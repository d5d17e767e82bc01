#pragma once
// The folder of a process that trains, and the files of the outer loop in it.

#include <filesystem>
#include <span>
#include <string>

#include "isthmus/outer_sync/engine/outer_loop.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

/// Folder of checkpoints in a replica's folder.
[[nodiscard]] std::filesystem::path checkpoints_in(const std::filesystem::path& replica_folder);

/// The replica's own folder. If it has checkpoints and the run is not resumed, it is moved away as that of an
/// earlier run. The log stays in place for all runs: `launch` has opened it by that name.
[[nodiscard]] std::filesystem::path replica_folder(const Experiment& experiment, const std::string& name,
                                                   bool resume);

/// The first free trace file: a resumed run keeps the traces of earlier runs.
[[nodiscard]] std::filesystem::path trace_file(const std::filesystem::path& replica_folder);

/// Plan for `outer.log`, which must not be empty. `model`: fingerprint.
[[nodiscard]] outer_sync::OuterLoop::LogPlan log_plan(const Experiment& experiment, const std::string& name,
                                                      std::span<const outer_sync::log::LoggedTensor> tensors,
                                                      const outer_sync::FragmentLayout& layout,
                                                      const Digest& model);

}  // namespace isthmus::app
