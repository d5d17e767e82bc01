#include "run/output/version.h"

#include <isthmus_commit.h>

#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::app {

std::string version() { return ISTHMUS_VERSION; }
std::string commit() { return ISTHMUS_COMMIT; }

std::string version_text(const TrainerBuild& trainer) {
  using namespace outer_sync::protocol;
  return std::string("isthmus ") + ISTHMUS_VERSION + "\ncommit     " + ISTHMUS_COMMIT + "\ntorch      " +
         trainer.torch + (trainer.found.empty() ? "" : " (" + trainer.found + ")") + "\nCUDA       " +
         trainer.cuda + "\nprotocol   " + std::to_string(protocol_version) + "\nnumerics   " +
         std::to_string(numerics_version);
}

std::string build_name(const TrainerBuild& trainer) {
  return std::string(ISTHMUS_COMMIT) + " with torch " + trainer.torch;
}

}  // namespace isthmus::app
