#pragma once
// Which libtorch the trainer is to use: looked for when a verb needs it, by `isthmus` alone.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace isthmus::app {

struct TorchFolder {
  std::filesystem::path path;  ///< the package's folder; its libraries are in lib/
  std::string version;         ///< of its version.py
  std::string place;           ///< which of the places below it is
};

struct TorchSearch {
  std::optional<TorchFolder> found;
  std::vector<std::string> looked;  ///< a line for each place that has none that fits, with what is wrong
};

/// What the trainer was built with.
struct TorchNeed {
  std::string release;  ///< "2.11": any of its versions fits
  bool cuda = false;
};

/// Looks at `given` (of --torch; a torch package's folder or its lib/) alone where it is not empty; else
/// beside the program, then in the active Python environment. Starts python3 where nothing is beside it.
[[nodiscard]] TorchSearch find_torch(const std::string& given, const std::filesystem::path& program,
                                     const TorchNeed& need);

/// "training needs torch 2.11.*, and none was found: ...", with all places that were looked at.
[[nodiscard]] std::string what_is_missing(const TorchSearch& search, const TorchNeed& need,
                                          const std::string& separator);
[[nodiscard]] std::string how_to_get(const TorchNeed& need);
/// Throws Error(config) naming all places that were looked at.
[[nodiscard]] TorchFolder need_torch(const TorchSearch& search, const TorchNeed& need);

}  // namespace isthmus::app
