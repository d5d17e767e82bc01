#pragma once
// `isthmus replay`: rebuilds a model from a round log.

#include <cstdint>
#include <filesystem>
#include <optional>

namespace isthmus::app {

struct ReplayRequest {
  std::filesystem::path log;           ///< folder
  std::optional<std::uint64_t> until;  ///< last round of each fragment to apply
  bool json = false;
  std::filesystem::path out;  ///< safetensors file; empty: only check the log
};

/// Prints the result. Returns the exit status; throws the errors of outer_sync::log::replay and
/// write_safetensors.
[[nodiscard]] int run_replay(const ReplayRequest& request);

}  // namespace isthmus::app
