#pragma once
// `isthmus replay`: a model from a round log.

#include <cstdint>
#include <filesystem>
#include <optional>

namespace isthmus::app {

struct ReplayRequest {
  std::filesystem::path log;           ///< folder
  std::optional<std::uint64_t> until;  ///< last round of each fragment that is applied
  bool json = false;
  std::filesystem::path out;  ///< safetensors file; empty: only look whether the log is right
};

/// Prints what it found. Returns the exit status; throws as outer_sync::log::replay and write_safetensors do.
[[nodiscard]] int run_replay(const ReplayRequest& request);

}  // namespace isthmus::app
