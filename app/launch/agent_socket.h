#pragma once
// Where a site's agent is found: RUN/agents/SITE.sock, in a folder that its owner alone can enter, and a lock
// beside it that the agent holds for as long as it lives.

#include <filesystem>
#include <string>

namespace isthmus::app {

struct AgentPlace {
  std::filesystem::path folder;  ///< of the run
  std::string site;

  [[nodiscard]] std::filesystem::path agents() const { return folder / "agents"; }
  [[nodiscard]] std::filesystem::path log() const { return agents() / (site + ".log"); }
};

/// The agent's own lock; -1 where another agent holds it. Throws Error(data) where the folder cannot be made.
[[nodiscard]] int lock_agent(const AgentPlace& place);
/// Whether one lives.
[[nodiscard]] bool agent_lives(const AgentPlace& place);
/// A socket that listens, of mode 0600; only whoever holds the lock may ask. Throws Error(data).
[[nodiscard]] int listen_as_agent(const AgentPlace& place);
/// A connection to the agent; -1 where none listens.
[[nodiscard]] int connect_to_agent(const AgentPlace& place);
/// So that nobody connects any more.
void unlink_agent(const AgentPlace& place);

}  // namespace isthmus::app
