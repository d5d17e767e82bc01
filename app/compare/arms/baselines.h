#pragma once
// Makes the comparison of a plain experiment with its baselines, for `compare --certify`.

#include <filesystem>
#include <string>
#include <vector>

#include "isthmus/base/config.h"

namespace isthmus::app {

/// Whether the file is an experiment and not a comparison.
[[nodiscard]] bool is_experiment(const config::Source& source);

/// Returns a comparison with the arms data parallel, one replica under the same outer step, and the
/// experiment, all with the same batch per step. `assignments` are those of a comparison file; the returned
/// comparison includes them. Throws Error(config) if the experiment has no such baselines.
[[nodiscard]] config::Source with_baselines(const std::filesystem::path& experiment,
                                            const std::vector<std::string>& assignments);

}  // namespace isthmus::app
