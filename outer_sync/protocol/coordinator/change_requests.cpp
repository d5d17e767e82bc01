#include "isthmus/outer_sync/protocol/coordinator/change_requests.h"

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

}  // namespace

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
