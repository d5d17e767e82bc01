#pragma once
// The links of a launch to the agents that own its processes: one for each remote site and, for a detached
// launch, one on this machine, so that its processes outlive the launch.

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "launch/agent/agent_socket.h"
#include "launch/launch_plan.h"
#include "launch/sites/site_links.h"

namespace isthmus::app {

class LaunchLinks {
 public:
  /// Refers to both, which must outlive this. `files`: for a site, written before anything is started there.
  LaunchLinks(const LaunchRequest& request, const LaunchPlan& plan, SiteLinks::Files files);

  [[nodiscard]] SiteLinks& sites() { return sites_; }
  [[nodiscard]] const SiteLinks& sites() const { return sites_; }
  /// Starts the agent on this machine, or connects to it. Throws Error(data).
  void connect_here(const std::atomic<int>& interrupts);
  [[nodiscard]] bool agent_lives_here() const { return agent_lives(agent_here()); }

  /// The link to the agent that starts and ends a process; null if the process is a child of this one or is
  /// started by a scheduler.
  [[nodiscard]] std::shared_ptr<SiteLink> of(const Site* site);
  [[nodiscard]] std::shared_ptr<SiteLink> of(const std::string& name);
  /// A process that an agent already had; nullopt if none has this name.
  [[nodiscard]] std::optional<FoundProcess> found(const std::string& name);
  [[nodiscard]] bool found_running(const std::string& name);
  /// Kills it and waits for its end.
  void kill_found(const std::string& name);

  /// From now on the agents' processes outlive this launch.
  void leave_running();
  /// Ends all connections, and the processes unless `leave_running` was called.
  void close();

 private:
  [[nodiscard]] AgentPlace agent_here() const;

  const LaunchRequest& request_;
  const LaunchPlan& plan_;
  SiteLinks sites_;
  std::shared_ptr<SiteLink> here_;
};

}  // namespace isthmus::app
