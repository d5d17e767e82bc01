#pragma once

#include <string>

namespace isthmus::app {

/// The trainer of a binary; the defaults in a binary without one.
struct TrainerBuild {
  std::string torch = "none", cuda = "none";
  std::string found = {};  ///< the libtorch that was found on this machine
};

[[nodiscard]] std::string version();
/// The commit that the binary was built from.
[[nodiscard]] std::string commit();
/// Several lines: version, commit, torch, CUDA architectures, protocol and numerics versions.
[[nodiscard]] std::string version_text(const TrainerBuild& trainer);
/// Commit and torch on one line, for messages about unequal builds.
[[nodiscard]] std::string build_name(const TrainerBuild& trainer);

}  // namespace isthmus::app
