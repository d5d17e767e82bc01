#include "version.h"

#include <isthmus_commit.h>

#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::app {

std::string version_text() {
  using namespace outer_sync::protocol;
  return std::string("isthmus ") + ISTHMUS_VERSION + "\ncommit     " + ISTHMUS_COMMIT + "\ntorch      " +
         ISTHMUS_TORCH_VERSION + "\nCUDA       " + ISTHMUS_CUDA_ARCHITECTURES + "\nprotocol   " +
         std::to_string(protocol_version) + "\nnumerics   " + std::to_string(numerics_version);
}

std::string build_name() { return std::string(ISTHMUS_COMMIT) + " with torch " + ISTHMUS_TORCH_VERSION; }

}  // namespace isthmus::app
