#pragma once
// The first message of a site's agent on a connection, as a launch reads it.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/agent/agent_messages.h"

namespace isthmus::app {

/// A machine as its agent describes it.
struct SiteFacts {
  std::filesystem::path folder;  ///< of runs, absolute
  std::int64_t cores = 1;
  std::vector<std::string> gpus;
  std::string build;
};

/// A process that the agent already had when the link connected.
struct FoundProcess {
  std::int64_t life = 0;
  std::optional<int> status;  ///< nullopt while it runs
};

struct AgentHello {
  SiteFacts facts;
  std::map<std::string, FoundProcess> found;  ///< by name
  bool any_runs = false;                      ///< one of them runs
  std::int64_t lives = 0;                     ///< the highest life of any of them
};
/// Skips fields and processes of another type than expected.
[[nodiscard]] AgentHello read_hello(const Message& hello);

}  // namespace isthmus::app
