#pragma once
// The comparison of a plain experiment with its baselines, as `compare --certify` makes it.

#include <filesystem>
#include <string>
#include <vector>

#include "isthmus/base/config.h"

namespace isthmus::app {

/// The file is an experiment, and no comparison.
[[nodiscard]] bool is_experiment(const config::Source& source);

/// Arms: data parallel, one replica under the same outer step, and the experiment; all with the same batch in
/// a step. `assignments` are as of a comparison file, and already in what is returned. Throws Error(config)
/// for an experiment that has no such baselines.
[[nodiscard]] config::Source with_baselines(const std::filesystem::path& experiment,
                                            const std::vector<std::string>& assignments);

}  // namespace isthmus::app
