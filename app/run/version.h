#pragma once

#include <string>

namespace isthmus::app {

/// What a binary trains with; nothing of it in one that has no trainer.
struct TrainerBuild {
  std::string torch = "none", cuda = "none";
  std::string found = {};  ///< which libtorch this machine has for it
};

[[nodiscard]] std::string version();
/// That the binary was built from.
[[nodiscard]] std::string commit();
/// Several lines: version, commit, torch, CUDA architectures, protocol and numerics versions.
[[nodiscard]] std::string version_text(const TrainerBuild& trainer);
/// Commit and torch on one line, for messages about unequal builds.
[[nodiscard]] std::string build_name(const TrainerBuild& trainer);

}  // namespace isthmus::app
