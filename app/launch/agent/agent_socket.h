#pragma once
// Files of a site's agent: the socket RUN/agents/SITE.sock, in a folder that only its owner can enter, and a
// lock next to it that the agent holds while it runs.

#include <filesystem>
#include <string>

namespace isthmus::app {

struct AgentPlace {
  std::filesystem::path folder;  ///< the run's
  std::string site;

  [[nodiscard]] std::filesystem::path agents() const { return folder / "agents"; }
  [[nodiscard]] std::filesystem::path log() const { return agents() / (site + ".log"); }
};

/// Takes the agent's lock and returns its descriptor; -1 if another agent holds it. Throws Error(data) if the
/// folder cannot be made.
[[nodiscard]] int lock_agent(const AgentPlace& place);
/// Whether the site's agent is running.
[[nodiscard]] bool agent_lives(const AgentPlace& place);
/// A listening socket of mode 0600. Call it only while holding the lock. Throws Error(data).
[[nodiscard]] int listen_as_agent(const AgentPlace& place);
/// Connects to the agent; -1 if no agent listens.
[[nodiscard]] int connect_to_agent(const AgentPlace& place);
/// Removes the socket, so that no launch connects any more.
void unlink_agent(const AgentPlace& place);

}  // namespace isthmus::app
