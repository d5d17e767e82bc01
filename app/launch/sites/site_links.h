#pragma once
// The connections of a launch to its sites on other machines.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launch/sites/site_link.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

class SiteLinks {
 public:
  /// Files for a site, written before anything is started there.
  using Files = std::function<std::vector<SiteFile>(const Site&, const SiteFacts&)>;
  /// Receives whole lines of output and the name of the process or site, on the links' threads.
  using Show = std::function<void(const std::string& who, const std::string& line)>;
  /// Prefixes lines with the process or site; the coordinator's lines look as if it were local.
  static void show_on_standard_output(const std::string& who, const std::string& line);
  /// Refers to the sites of `experiment`, which must outlive this.
  SiteLinks(const Experiment& experiment, Files files, Show show = show_on_standard_output);
  ~SiteLinks() { leave(); }
  SiteLinks(const SiteLinks&) = delete;
  SiteLinks& operator=(const SiteLinks&) = delete;

  /// Accepts processes that already run at the sites. Call it before `connect`.
  void take_over() { take_over_ = true; }
  /// Uses agents of another name, which are not part of the run and end soon after their connection.
  void use_own_agents(std::string suffix) { agent_suffix_ = std::move(suffix); }
  /// Connects to all sites or none: returns when every site is ready, or false on an interrupt. Throws
  /// Error(network) or Error(data) with the problems by site.
  [[nodiscard]] bool connect(const std::atomic<int>& interrupts);
  [[nodiscard]] std::shared_ptr<SiteLink> to(const Site& site);
  /// The site's facts when it was last reached. Throws Error(network) if it never was.
  [[nodiscard]] SiteFacts facts(const Site& site);
  /// Whether a worker at any site has made a step.
  [[nodiscard]] bool begun() const;
  /// Whether the coordinator that ended at a site left an unfinished run.
  [[nodiscard]] bool run_is_unfinished(const Site& site) const;
  /// Why a site is lost; empty if it is not lost, or is on this machine.
  [[nodiscard]] std::string loss(const Site& site) const;
  /// Ends all connections at the same time, and the processes there unless `leave_running` was called.
  void leave();
  void leave_running();

 private:
  [[nodiscard]] std::shared_ptr<SiteLink> make(const Site& site);

  const Experiment& experiment_;
  Files files_;
  Show show_;
  bool take_over_ = false;
  std::string agent_suffix_;
  std::map<std::string, std::shared_ptr<SiteLink>> links_;
};

}  // namespace isthmus::app
