#include "run/process/scratch_folder.h"

#include <cstdlib>
#include <system_error>

#include "isthmus/base/error.h"

namespace isthmus::app {

ScratchFolder::ScratchFolder(const std::string& verb) {
  auto name = (std::filesystem::temp_directory_path() / ("isthmus-" + verb + "-XXXXXX")).string();
  if (mkdtemp(name.data()) == nullptr)
    data_error("cannot make the folder " + name + "; expected room for temporary files");
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace isthmus::app
