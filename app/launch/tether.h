#pragma once
// `isthmus tether`: what `launch` starts at a site, over ssh or on its own machine. It finds the site's agent
// or starts it (site_agent.h), and carries bytes between it and standard input and output until one of them
// ends. The agent is a process of its own and goes on.

#include <filesystem>
#include <string>
#include <vector>

#include "launch/agent_socket.h"

namespace isthmus::app {

struct TetherRequest {
  std::filesystem::path folder;  ///< of runs; made if need be
  std::string run, site;
  double silence = 43200;  ///< seconds without a word of the launch after which its processes end
  double grace = 60;       ///< seconds from SIGTERM to SIGKILL then
  int started_fd = -1;     ///< of the agent itself: gets "ok\n" once it listens
  std::string build = {};  ///< of this binary
  std::vector<std::string> program = {};  ///< this binary: the first words of a command

  [[nodiscard]] AgentPlace place() const { return {folder / run, site}; }
};

/// Exit status: 0 when either end has gone, 3 where there can be no agent, which is also said in a message.
[[nodiscard]] int run_tether(TetherRequest request);

}  // namespace isthmus::app
