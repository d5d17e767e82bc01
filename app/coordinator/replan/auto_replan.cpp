#include "coordinator/replan/auto_replan.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "coordinator/replan/replan_readings.h"
#include "isthmus/base/error.h"
#include "isthmus/base/time.h"
#include "plan/links.h"

namespace isthmus::app {

using outer_sync::plan::LineReadings;
using outer_sync::plan::Proposal;
using outer_sync::protocol::Coordinator;
using outer_sync::protocol::RunPhase;
using outer_sync::protocol::Settings;

namespace {

constexpr const char* every_key = "outer.sync_every";
constexpr const char* delay_key = "outer.sync_delay";
/// One name for each replica. Measured links have the names of workers, configured links those of sites.
std::vector<std::string> names_of_replicas(const Links& links, const Experiment& experiment) {
  auto workers = worker_names(experiment);
  std::vector<std::string> names;
  for (const auto& site : links.sites) {
    if (site.replicas != 1 || std::ranges::find(workers, site.name) == workers.end()) return workers;
    names.push_back(site.name);
  }
  return names;
}

/// The configured links, for the workers that the run starts with.
LineReadings said(const Links& links, const Experiment& experiment) {
  LineReadings out;
  const auto names = names_of_replicas(links, experiment);
  if (names.size() > AutoReplan::max_replicas) return out;
  const auto network = network_of(links, experiment.network.lanes, experiment.automatic.step_time.seconds);
  if (network.replicas.size() != names.size()) return out;
  const auto known = [](double rate) { return std::isfinite(rate) ? rate : 0; };
  for (std::size_t m = 0; m < names.size(); ++m)
    out.members.push_back({names[m], network.replicas[m].step_seconds, known(network.replicas[m].up)});
  for (std::size_t k = 0; k < network.one_way.size(); ++k)
    out.ways.push_back({2 * network.one_way[k], network.path.empty() ? 0 : known(network.path[k])});
  return out;
}

/// The links to plan with before they are measured. A missing links file is not an error: it may be gone when
/// a run is resumed.
LineReadings expected(const Experiment& experiment, const AutoReplan::Say& say) {
  const auto& links = experiment.automatic.links;
  try {
    return said(links.empty() ? links_of(experiment) : read_links(links), experiment);
  } catch (const Error& error) {
    say(std::string("outer.auto: cannot use the configured links, so it plans with measured ones only: ") +
        error.what());
    return {};
  }
}

config::SharedItems proposed_items(const Proposal& proposal) {
  config::SharedItems items;
  if (proposal.every != proposal.every_before) items.emplace_back(every_key, std::to_string(proposal.every));
  if (proposal.delay != proposal.delay_before) items.emplace_back(delay_key, std::to_string(proposal.delay));
  return items;
}

/// The time between two syncs of a fragment. A link that becomes slower within that time is planned as slow,
/// because rounds sent now end then.
std::chrono::seconds interval_of(const LineReadings& lines, const outer_sync::OuterConfig& outer) {
  constexpr double longest = 3600;
  double step = 0;
  for (const auto& member : lines.members) step = std::max(step, member.step_seconds);
  const auto every = static_cast<double>(outer_sync::plan::last_sync_every(outer));
  return std::chrono::seconds(static_cast<std::int64_t>(std::min(longest, every * step)));
}

bool has(const config::SharedItems& items, const std::string& key) {
  return std::ranges::find(items, key, &std::pair<std::string, std::string>::first) != items.end();
}

nlohmann::ordered_json json_of_proposal(const Proposal& proposal, std::uint64_t after_step) {
  return {{"cause", proposal.cause},           {"sync_every_before", proposal.every_before},
          {"sync_every", proposal.every},      {"sync_delay_before", proposal.delay_before},
          {"sync_delay", proposal.delay},      {"predicted_before", proposal.before},
          {"predicted_after", proposal.after}, {"after_step", after_step}};
}

}  // namespace

AutoReplan::AutoReplan(const Experiment& experiment, Propose propose, Say say,
                       const outer_sync::plan::ReplanTuning& tuning)
    : experiment_(experiment),
      propose_(std::move(propose)),
      say_(std::move(say)),
      asked_for_(experiment.automatic.utilization > 0 && experiment.automatic.min_interval.seconds > 0) {
  if (!asked_for_) return;
  emulated_ = said(links_of(experiment), experiment);
  const auto& wanted = experiment.automatic;
  replanner_.emplace(
      outer_sync::plan::ReplanRules{
          .utilization = wanted.utilization, .min_seconds = wanted.min_interval.seconds, .tuning = tuning},
      experiment.outer, expected(experiment, say_));
  thread_ = std::thread([this] { work(); });
}

AutoReplan::~AutoReplan() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::optional<nlohmann::ordered_json> AutoReplan::look(const Coordinator& coordinator) {
  constexpr auto every = std::chrono::seconds(1);
  if (!asked_for_ || coordinator.run_phase() != RunPhase::running || !coordinator.layout()) return {};
  auto agreed = look_at_changes(coordinator.settings());
  const auto now = Clock::now();
  if (now - looked_ < every || coordinator.stopping() || coordinator.participating() > max_replicas)
    return agreed;
  looked_ = now;
  auto standing =
      replan_standing(coordinator, experiment_.outer, static_cast<std::uint64_t>(experiment_.run.steps));
  if (!standing) return agreed;
  standing->may_set_every = !every_by_hand_;
  standing->may_set_delay = !delay_by_hand_;
  Moment moment{.seconds = seconds(now - began_),
                .lines = replan_readings(coordinator, emulated_),
                .standing = *std::move(standing)};
  auto limits =
      calendar_limits(coordinator, std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()),
                      interval_of(moment.lines, moment.standing.outer));
  apply_limits(limits, moment.lines);
  moment.calendar_changed = limits_ != limits;
  limits_ = std::move(limits);
  {
    const std::lock_guard lock(mutex_);
    if (newest_) moment.calendar_changed |= newest_->calendar_changed;  // the planning thread has not seen it
    newest_ = std::move(moment);
  }
  changed_.notify_all();
  return agreed;
}

/// Finds proposals that have been agreed, and keys that an operator has set, which are left alone from then
/// on.
std::optional<nlohmann::ordered_json> AutoReplan::look_at_changes(const Settings& settings) {
  std::optional<nlohmann::ordered_json> agreed;
  const auto& changes = settings.changes;
  const auto seen = std::min(changes_.value_or(changes.size()), changes.size());
  changes_ = changes.size();
  for (auto i = seen; i < changes.size(); ++i) {
    const auto& items = changes[i].items;
    std::unique_lock lock(mutex_);
    if (proposed_ && items == proposed_items(*proposed_)) {
      agreed = json_of_proposal(*std::exchange(proposed_, std::nullopt), changes[i].step);
      continue;
    }
    lock.unlock();
    for (const auto& [key, by_hand] : {std::pair(every_key, &every_by_hand_), {delay_key, &delay_by_hand_}}) {
      if (!has(items, key) || std::exchange(*by_hand, true)) continue;
      say_(std::string("outer.auto: ") + key +
           " was set by hand, and is left alone until the coordinator is restarted");
    }
  }
  return agreed;
}

// ---- the planning thread ----

void AutoReplan::work() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ending_ || newest_; });
    if (ending_) return;
    const auto moment = *std::exchange(newest_, std::nullopt);
    lock.unlock();
    try {
      plan(moment);
    } catch (const std::exception& error) {
      say_(std::string("outer.auto stops planning: ") + error.what());
      return;
    }
  }
}

void AutoReplan::plan(const Moment& moment) {
  if (moment.calendar_changed) replanner_->calendar_changed();
  const auto proposal = replanner_->look(moment.seconds, moment.lines, moment.standing);
  if (!proposal) return;
  {
    const std::lock_guard lock(mutex_);
    proposed_ = proposal;
  }
  propose_(proposed_items(*proposal), to_string(*proposal));
}

}  // namespace isthmus::app
