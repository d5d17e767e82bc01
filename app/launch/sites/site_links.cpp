#include "launch/sites/site_links.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "launch/sites/ssh_command.h"

namespace isthmus::app {

using namespace std::chrono_literals;

SiteLinks::SiteLinks(const Experiment& experiment, Files files, Show show)
    : experiment_(experiment), files_(std::move(files)), show_(std::move(show)) {}

std::shared_ptr<SiteLink> SiteLinks::make(const Site& site) {
  constexpr double own_silence = 30;
  const AgentOptions agent{.run = experiment_.run.name,
                           .site = site.name + agent_suffix_,
                           .silence = agent_suffix_.empty() ? site.silence.seconds : own_silence,
                           .grace = experiment_.run.stop_grace.seconds};
  return std::make_shared<SiteLink>(
      SiteLink::Options{.site = site.name,
                        .place = site.launch.ssh,
                        .command = ssh_command(site.launch, agent),
                        .take_over = take_over_,
                        .dials_again = agent_suffix_.empty(),
                        .files = [this, &site](const SiteFacts& facts) { return files_(site, facts); },
                        .show = show_});
}

bool SiteLinks::connect(const std::atomic<int>& interrupts) {
  for (const auto& site : experiment_.sites) {
    if (site.launch.kind() == LauncherConfig::Kind::ssh) links_[site.name] = make(site);
  }
  const auto connecting = [](const auto& link) {
    return link.second->state() == SiteLink::State::connecting;
  };
  while (std::ranges::any_of(links_, connecting)) {
    if (interrupts > 0) return false;
    std::this_thread::sleep_for(20ms);
  }
  std::string problems;
  int status = 0;
  for (const auto& [name, link] : links_) {
    if (link->state() != SiteLink::State::failed) continue;
    problems += fmt::format("{}{}", problems.empty() ? "" : "\n         ", link->problem());
    if (status == 0) status = link->problem_status();
  }
  if (problems.empty()) return true;
  throw Error(status == exit_status(ErrorKind::network) ? ErrorKind::network : ErrorKind::data,
              "nothing was started: " + problems);
}

void SiteLinks::show_on_standard_output(const std::string& who, const std::string& line) {
  const char* clear = isatty(STDOUT_FILENO) == 1 ? "\r\x1b[K" : "";  // a progress line
  const auto from = who == outer_sync::tls::coordinator_name ? std::string() : who + " | ";
  say_to(stdout, clear + from + printable(line) + "\n");
}

std::shared_ptr<SiteLink> SiteLinks::to(const Site& site) { return links_.at(site.name); }

SiteFacts SiteLinks::facts(const Site& site) {
  auto facts = links_.at(site.name)->facts();
  if (facts.folder.empty())
    throw Error(ErrorKind::network, "site " + site.name + " has not reported its folder yet");
  return facts;
}

bool SiteLinks::begun() const {
  return std::ranges::any_of(links_, [](const auto& link) { return link.second->begun(); });
}

bool SiteLinks::run_is_unfinished(const Site& site) const {
  const auto link = links_.find(site.name);
  return link != links_.end() && link->second->run_is_unfinished();
}

std::string SiteLinks::loss(const Site& site) const {
  const auto link = links_.find(site.name);
  const bool lost = link != links_.end() && link->second->state() == SiteLink::State::failed;
  return lost ? link->second->problem() : "";
}

void SiteLinks::leave_running() {
  for (const auto& link : links_) link.second->leave_running();
}

void SiteLinks::leave() {
  for (const auto& link : links_) link.second->close_soon();
  links_.clear();
}

}  // namespace isthmus::app
