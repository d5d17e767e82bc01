#pragma once
// A site's agent: a process with a session of its own, one for each run and site, that owns the site's
// workers, and the coordinator where that is placed there. It does what a launch says over its socket
// (agent_socket.h, tether_messages.h) and goes on without one: for `silence`, then it ends its processes and
// itself. While no launch is there, it starts again what died.

#include "launch/tether.h"

namespace isthmus::app {

/// Exit status: 0 when a launch has left or was silent for too long, or another agent is at work; 3 where its
/// folder cannot be written. Errors are said on standard error, which is the agent's log.
[[nodiscard]] int run_site_agent(const TetherRequest& request);

}  // namespace isthmus::app
