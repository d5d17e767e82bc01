#pragma once
// `isthmus tether`: started by `launch` at a site, over SSH or on its own machine. It finds or starts the
// site's agent (site_agent.h) and copies bytes between the agent and standard input and output until one of
// them ends. The agent is a separate process and continues.

#include <filesystem>
#include <string>
#include <vector>

#include "launch/agent/agent_socket.h"

namespace isthmus::app {

/// The agent that the tether finds or starts.
struct AgentOptions {
  std::string run, site;
  double silence = 43200;  ///< seconds without a launch after which the agent ends its processes and itself
  double grace = 60;       ///< seconds from SIGTERM to SIGKILL then
};

struct TetherRequest {
  std::filesystem::path folder;  ///< of runs; created if needed
  AgentOptions agent;
  int started_fd = -1;                    ///< for the agent itself: receives "ok\n" once it listens
  std::string build = {};                 ///< of this binary
  std::vector<std::string> program = {};  ///< command that starts this binary

  [[nodiscard]] AgentPlace place() const { return {folder / agent.run, agent.site}; }
};

/// Adds `tether` and its options to a command.
void add_tether_words(std::vector<std::string>& command, const std::string& folder,
                      const AgentOptions& agent);

/// Exit status: 0 when either end has closed, 3 if no agent can be reached; the reason is sent as a message
/// too.
[[nodiscard]] int run_tether(TetherRequest request);

}  // namespace isthmus::app
