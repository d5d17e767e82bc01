#pragma once

#include <string>

namespace isthmus::app {

/// Several lines: version, commit, torch, CUDA architectures, protocol and numerics versions.
[[nodiscard]] std::string version_text();
/// Commit and torch on one line, for messages about unequal builds.
[[nodiscard]] std::string build_name();

}  // namespace isthmus::app
