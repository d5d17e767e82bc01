#include "run/output/version.h"

#include <fmt/format.h>
#include <isthmus_commit.h>

#include "isthmus/outer_sync/protocol/messages/versions.h"

namespace isthmus::app {

std::string version() { return ISTHMUS_VERSION; }
std::string commit() { return ISTHMUS_COMMIT; }

std::string version_text(const TrainerBuild& trainer) {
  return fmt::format(
      "isthmus {}\ncommit     {}\ntorch      {}{}\nCUDA       {}\nprotocol   {}\nnumerics   {}", version(),
      commit(), trainer.torch, trainer.found.empty() ? "" : fmt::format(" ({})", trainer.found), trainer.cuda,
      outer_sync::protocol::protocol_version, outer_sync::protocol::numerics_version);
}

std::string build_name(const TrainerBuild& trainer) {
  return fmt::format("{} with torch {}", commit(), trainer.torch);
}

}  // namespace isthmus::app
