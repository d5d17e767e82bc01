#pragma once
// Finds the libtorch for the trainer. Called only by `isthmus`, when a verb needs it.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace isthmus::app {

struct TorchFolder {
  std::filesystem::path path;  ///< folder of the package; the libraries are in its lib/
  std::string version;         ///< from its version.py
  std::string place;           ///< where it was found, for messages
};

struct TorchSearch {
  std::optional<TorchFolder> found;
  std::vector<std::string> looked;  ///< one line for each rejected place, with the reason
};

/// The torch that the trainer was built with.
struct TorchNeed {
  std::string release;  ///< "2.11": every version 2.11.* fits
  bool cuda = false;
};

/// If `given` (the value of --torch: a torch package's folder, or its lib/) is not empty, looks only there.
/// Otherwise looks next to the program, then in the active Python environment, for which it starts python3.
[[nodiscard]] TorchSearch find_torch(const std::string& given, const std::filesystem::path& program,
                                     const TorchNeed& need);

/// "training needs torch 2.11.*, and none was found: ...", with all places that were searched.
[[nodiscard]] std::string what_is_missing(const TorchSearch& search, const TorchNeed& need,
                                          const std::string& separator);
[[nodiscard]] std::string how_to_get(const TorchNeed& need);
/// Throws Error(config) with all places that were searched.
[[nodiscard]] TorchFolder need_torch(const TorchSearch& search, const TorchNeed& need);

}  // namespace isthmus::app
