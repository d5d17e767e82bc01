#include "isthmus/outer_sync/protocol/coordinator/steering/change_requests.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace isthmus::outer_sync::protocol {
namespace {

using What = ChangeRequest::What;

/// A reach from here on: a member has not begun its first step in this view.
constexpr std::uint64_t highest_step = std::uint64_t{1} << 60;

/// Returns why the request is impossible; `settings` are unchanged then.
std::string put(ChangeRequest& request, Settings& settings, std::uint64_t reach, std::uint64_t steps) {
  if (request.what == What::resume) {
    settings.pause_after = Settings::never;
    request.step = reach;
    return {};
  }
  const auto earliest =
      std::max(reach, settings.changes.empty() ? std::uint64_t{0} : settings.changes.back().step);
  if (reach >= highest_step) return "not all replicas have begun their first step in this view; try again";
  const auto step = std::max(earliest, request.change.step);
  if (request.change.step > 0 && request.change.step < earliest)
    return "step " + std::to_string(request.change.step) +
           " may be past before all members know of the change; the earliest possible step is " +
           std::to_string(earliest);
  if (steps > 0 && step >= steps)
    return "the change would take effect after step " + std::to_string(step) + ", and the run ends at step " +
           std::to_string(steps);
  request.step = step;
  if (request.what == What::pause) settings.pause_after = step;
  if (request.what == What::change) settings.changes.push_back({step, request.change.items});
  return {};
}

/// Whether the settings contain the announced change.
bool holds(const Settings& settings, const ChangeRequest& request) {
  const bool paused = settings.pause_after != Settings::never;
  switch (request.what) {
    case What::pause:
      return paused;
    case What::resume:
      return !paused;
    case What::change:
      return std::ranges::find(settings.changes, Change{request.step, request.change.items}) !=
             settings.changes.end();
  }
  return false;
}

template <class Select>
std::vector<ChangeRequest> take(std::vector<ChangeRequest>& requests, Select select) {
  std::vector<ChangeRequest> taken;
  std::ranges::copy_if(requests, std::back_inserter(taken), select);
  std::erase_if(requests, select);
  return taken;
}

constexpr auto no_changes = "this run accepts no changes of settings";

}  // namespace

std::string text_of(const ConfigItems& items) {
  std::string text;
  for (const auto& [key, value] : items) text += (text.empty() ? "" : ", ") + key + "=" + value;
  return text;
}

ChangeVerdict SettingsJudge::judge(const Settings& before, const ConfigItems& items) const {
  const auto refused = [](std::string why) { return ChangeVerdict{std::move(why), false}; };
  if (!Settings{.changes = {{0, items}}}.sound())
    return refused("too many or too long changes; expected at most " + std::to_string(Settings::max_items) +
                   " keys at a time, and keys and values of at most " +
                   std::to_string(Settings::longest_text) + " characters");
  if (!rule_) return refused(no_changes);
  auto verdict = rule_(before, items);
  if (!verdict.problem.empty() || verdict.at_once) return verdict;
  auto after = before;
  after.changes.push_back({before.changes.empty() ? 0 : before.changes.back().step, items});
  if (!after.sound())
    return refused(
        "this run has reached the limit of changes; stop it, write the values into its config file, and "
        "start another run from its checkpoint");
  return verdict;
}

std::string SettingsJudge::problem_of(const Settings& settings) const {
  if (settings == sound_) return {};
  Settings before;
  for (const auto& change : settings.changes) {
    const auto verdict = rule_ ? rule_(before, change.items) : ChangeVerdict{no_changes, false};
    if (!verdict.problem.empty()) return "settings that no operator can have set: " + verdict.problem;
    if (verdict.at_once)
      return "settings that no operator can have set: " + text_of(change.items) +
             " is set by each member for itself";
    before.changes.push_back(change);
  }
  sound_ = settings;
  return {};
}

std::vector<Change> ChangeRequests::pending_changes() const {
  std::vector<Change> changes;
  for (const auto& request : requests_) {
    if (request.what == What::change && request.in == 0) changes.push_back(request.change);
  }
  return changes;
}

std::vector<ChangeRequests::Refused> ChangeRequests::put_into(Settings& settings, ViewNumber number,
                                                              std::uint64_t reach, std::uint64_t steps) {
  std::vector<Refused> refused;
  std::vector<ChangeRequest> stay;
  for (auto& request : requests_) {
    const bool is_there = request.in > 0 && holds(settings, request);  // a view that has begun brought it
    auto problem = is_there ? std::string() : put(request, settings, reach, steps);
    if (!problem.empty()) {
      refused.push_back({std::move(request), std::move(problem)});
      continue;
    }
    if (!is_there) request.in = number;
    stay.push_back(std::move(request));
  }
  requests_ = std::move(stay);
  return refused;
}

std::vector<ChangeRequest> ChangeRequests::take_begun() {
  return take(requests_, [](const ChangeRequest& request) { return request.in > 0; });
}

std::vector<ChangeRequest> ChangeRequests::take_pending() {
  return take(requests_, [](const ChangeRequest& request) { return request.in == 0; });
}

}  // namespace isthmus::outer_sync::protocol
