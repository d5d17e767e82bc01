#include "isthmus/base/walk.h"

namespace isthmus {

namespace fs = std::filesystem;

// Not with std::filesystem::recursive_directory_iterator: libraries of PyTorch 2.7 export parts of another
// libstdc++, which replace the system's in a Python process, and its destructor then frees memory that is not
// its own.
std::error_code walk_below(const fs::path& folder,
                           const std::function<void(const fs::directory_entry&)>& visit) {
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    std::error_code gone;
    if (at->is_directory(gone) && !at->is_symlink(gone)) {
      if (const auto below = walk_below(at->path(), visit);
          below && below != std::errc::no_such_file_or_directory)
        return below;
    }
    visit(*at);
  }
  return failed;
}

}  // namespace isthmus
