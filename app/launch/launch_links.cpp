#include "launch/launch_links.h"

#include <chrono>
#include <csignal>
#include <thread>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "launch/agent/tether.h"

namespace isthmus::app {

using namespace std::chrono_literals;
namespace tls = outer_sync::tls;

namespace {

constexpr const char* this_machine = "this machine";

/// Workers write to their logs.
void show_coordinator(const std::string& who, const std::string& line) {
  if (who == tls::coordinator_name || who == this_machine) SiteLinks::show_on_standard_output(who, line);
}

}  // namespace

LaunchLinks::LaunchLinks(const LaunchRequest& request, const LaunchPlan& plan, SiteLinks::Files files)
    : request_(request), plan_(plan), sites_(plan.experiment(), std::move(files)) {
  if (request.resume) sites_.take_over();
}

AgentPlace LaunchLinks::agent_here() const { return {plan_.experiment().folder(), "launch.here"}; }

void LaunchLinks::connect_here(const std::atomic<int>& interrupts) {
  const auto& experiment = plan_.experiment();
  auto command = request_.program;
  add_tether_words(command, std::filesystem::absolute(experiment.run.out).string(),
                   {.run = experiment.run.name,
                    .site = agent_here().site,
                    .silence = experiment.launch.silence.seconds,
                    .grace = experiment.run.stop_grace.seconds});
  here_ = std::make_shared<SiteLink>(
      SiteLink::Options{.site = this_machine,
                        .place = "its agent",
                        .command = std::move(command),
                        .take_over = request_.resume,
                        .same_disk = true,
                        .files = [](const SiteFacts&) { return std::vector<SiteFile>(); },
                        .show = show_coordinator});
  while (here_->state() == SiteLink::State::connecting && interrupts == 0) std::this_thread::sleep_for(20ms);
  if (here_->state() == SiteLink::State::failed) data_error(here_->problem());
}

std::shared_ptr<SiteLink> LaunchLinks::of(const Site* site) {
  return site != nullptr && site->is_elsewhere() ? sites_.to(*site) : here_;
}

std::shared_ptr<SiteLink> LaunchLinks::of(const std::string& name) {
  if (name == tls::coordinator_name) return of(coordinator_site(plan_.experiment()));
  const auto* site = plan_.place_of(name).site;
  if (site != nullptr && !plan_.is_started_here(name)) return nullptr;
  return name == plan_.places().reader ? nullptr : of(site);
}

std::optional<FoundProcess> LaunchLinks::found(const std::string& name) {
  const auto link = of(name);
  if (!link) return std::nullopt;
  const auto all = link->found();
  const auto one = all.find(name);
  return one == all.end() ? std::nullopt : std::optional(one->second);
}

bool LaunchLinks::found_running(const std::string& name) {
  const auto process = found(name);
  return process && !process->status;
}

void LaunchLinks::kill_found(const std::string& name) {
  const auto process = of(name)->adopt(name, {});
  process->signal(SIGKILL);
  while (process->running()) std::this_thread::sleep_for(20ms);
}

void LaunchLinks::leave_running() {
  sites_.leave_running();
  if (here_) here_->leave_running();
}

void LaunchLinks::close() {
  if (here_) here_->close_soon();
  sites_.leave();
  here_.reset();
}

}  // namespace isthmus::app
