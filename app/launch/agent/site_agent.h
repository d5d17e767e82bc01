#pragma once
// A site's agent: one process for each run and site, in a session of its own. It owns the site's workers, and
// the coordinator if that runs there. It follows the orders of a launch over its socket (agent_socket.h,
// agent_messages.h). Without a launch it restarts processes that die, and after `silence` ends them and
// itself.

#include "launch/agent/tether.h"

namespace isthmus::app {

/// Exit status: 0 when a launch has left or was silent for too long, or another agent is running; 3 if its
/// folder cannot be written. Errors go to standard error, which is the agent's log.
[[nodiscard]] int run_site_agent(const TetherRequest& request);

}  // namespace isthmus::app
