#pragma once
// The connections of a launch to its sites on other machines.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launch/site_link.h"
#include "run/experiment.h"

namespace isthmus::app {

class SiteLinks {
 public:
  /// What a site gets before anything is started there.
  using Files = std::function<std::vector<SiteFile>(const Site&, const SiteFacts&)>;
  /// Gets whole lines of what is said at a site, and by whom, on threads of the links.
  using Show = std::function<void(const std::string& who, const std::string& line)>;
  /// Under the name of a process or a site; the coordinator's as if it were here.
  static void show_on_standard_output(const std::string& who, const std::string& line);
  /// Sites are those of `experiment`, which must outlive it.
  SiteLinks(const Experiment& experiment, Files files, Show show = show_on_standard_output);
  ~SiteLinks() { leave(); }
  SiteLinks(const SiteLinks&) = delete;
  SiteLinks& operator=(const SiteLinks&) = delete;

  /// Processes that run at the sites already are welcome. Before `connect`.
  void take_up() { take_up_ = true; }
  /// Agents of another name, which are no part of the run and end soon after their connection.
  void stay_apart(std::string suffix) { apart_ = std::move(suffix); }
  /// All or none: returns when every site is ready, and false when it was interrupted before. Throws
  /// Error(network) or Error(data) with what is wrong at which sites.
  [[nodiscard]] bool connect(const std::atomic<int>& interrupts);
  [[nodiscard]] std::shared_ptr<SiteLink> to(const Site& site);
  /// As the site was when it was last reached. Throws Error(network) where it never was.
  [[nodiscard]] SiteFacts facts(const Site& site);
  /// A worker has made a step, at any of them.
  [[nodiscard]] bool begun() const;
  /// Whether the coordinator that has ended at a site has left a run that goes on.
  [[nodiscard]] bool run_goes_on(const Site& site) const;
  /// Why a site is lost; empty where it is not, or is on this machine.
  [[nodiscard]] std::string loss(const Site& site) const;
  /// Ends all connections together, and with them what still runs there, unless that is to go on.
  void leave();
  void let_go_on();

 private:
  [[nodiscard]] std::shared_ptr<SiteLink> make(const Site& site);

  const Experiment& experiment_;
  Files files_;
  Show show_;
  bool take_up_ = false;
  std::string apart_;
  std::map<std::string, std::shared_ptr<SiteLink>> links_;
};

}  // namespace isthmus::app
