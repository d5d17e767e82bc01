#include "isthmus/outer_sync/protocol/coordinator/paths/paths.h"

#include <algorithm>
#include <functional>

#include "isthmus/base/progress.h"
#include "protocol/short_number.h"

namespace isthmus::outer_sync::protocol {

namespace {

using Paths = std::vector<const Path*>;

Paths select(const Paths& paths, const std::function<bool(const Path&)>& wanted) {
  Paths out;
  std::ranges::copy_if(paths, std::back_inserter(out), [&](const Path* path) { return wanted(*path); });
  return out;
}

bool belongs_to(const Path& path, const Route& route) {
  return (route.from.empty() || path.from == route.from) && (route.to.empty() || path.to == route.to);
}

/// Median rate of the other paths that are not much nearer, divided by `rate`; 0 without such paths.
double times_slower(std::uint64_t rate, Time shortest, const Paths& others) {
  constexpr int nearer = 4;
  std::vector<std::uint64_t> rates;
  for (const auto* other : others) {
    if (other->shortest * nearer >= shortest) rates.push_back(other->bound());
  }
  if (rates.empty()) return 0;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>((rates.size() - 1) / 2);
  std::ranges::nth_element(rates, middle);
  return static_cast<double>(*middle) / static_cast<double>(rate);
}

Slowness slowness_of(const Route& line, const Paths& known, std::size_t members) {
  const auto& name = line.from.empty() ? line.to : line.from;
  const auto own = select(known, [&](const Path& path) { return belongs_to(path, line); });
  if (own.empty()) return {line, 0, 0, {}};
  const auto* fastest = *std::ranges::max_element(own, {}, &Path::bound);
  if (fastest->bytes_per_second == 0) return {line, 0, 0, {}};  // it may be far faster
  const auto others = select(known, [&](const Path& path) {
    return members > 2 ? path.from != name && path.to != name : !belongs_to(path, line);
  });
  const auto* farthest = *std::ranges::max_element(own, {}, &Path::shortest);
  const auto factor = times_slower(fastest->bytes_per_second, farthest->shortest, others);
  const auto only = own.size() > 1 ? std::string() : line.from.empty() ? own.front()->from : own.front()->to;
  return {line, factor, fastest->bytes_per_second, only};
}

Slowness path_of(const Path& path, const std::map<std::string, Paths>& sent,
                 const std::map<std::string, Paths>& got) {
  const auto against = [&](const Paths& paths) {
    const auto others = select(paths, [&](const Path& other) { return &other != &path; });
    return times_slower(path.bytes_per_second, path.shortest, others);
  };
  const auto factor = std::min(against(sent.at(path.from)), against(got.at(path.to)));
  return {{path.from, path.to}, factor, path.bytes_per_second, {}};
}

std::string words_of(const Route& route) {
  if (route.to.empty()) return route.from + " sends";
  return route.from.empty() ? route.to + " receives" : route.from + " -> " + route.to + " delivers";
}

}  // namespace

std::vector<Slowness> compare_paths(const std::vector<Path>& paths, const std::set<Route>& before) {
  std::vector<Slowness> out;
  Paths known;
  std::set<std::string> members;
  for (const auto& path : paths) {
    members.insert({path.from, path.to});
    if (path.bound() > 0) known.push_back(&path);
  }
  if (members.size() > max_compared_members) return out;

  const auto is_slow = [&](const Slowness& seen) {
    const bool was = before.contains(seen.route);
    if (seen.factor >= slow_from || (was && seen.factor > 0)) out.push_back(seen);
    return seen.factor >= (was ? slow_until : slow_from);
  };
  const auto judge_lines = [&](const std::function<Route(const std::string&)>& line) {
    std::vector<Route> slow;
    for (const auto& name : members) {
      if (is_slow(slowness_of(line(name), known, members.size()))) slow.push_back(line(name));
    }
    known = select(known, [&](const Path& path) {
      return std::ranges::none_of(slow, [&](const Route& of) { return belongs_to(path, of); });
    });
  };
  judge_lines([](const std::string& name) { return Route{name, ""}; });
  judge_lines([](const std::string& name) { return Route{"", name}; });

  std::map<std::string, Paths> sent, got;
  for (const auto* path : known) {
    sent[path->from].push_back(path);
    got[path->to].push_back(path);
  }
  for (const auto* path : known) {
    if (path->bytes_per_second > 0) is_slow(path_of(*path, sent, got));
  }
  return out;
}

// ---- coordinator ----

void RunPaths::begin(const View& view) {
  names_.clear();
  reports_.clear();
  heard_.clear();
  std::set<std::string> here{""};
  for (const auto& member : view.members) {
    names_[id_of(member)] = member.name;
    here.insert(member.name);
  }
  std::erase_if(slow_, [&](const auto& entry) {
    return !here.contains(entry.first.from) || !here.contains(entry.first.to);
  });
}

bool RunPaths::fits(ReplicaId from, const std::vector<PathReport>& reports) const {
  if (!names_.contains(from) || reports.size() >= names_.size()) return false;
  std::set<ReplicaId> peers;
  return std::ranges::all_of(reports, [&](const PathReport& report) {
    return report.peer != from && names_.contains(report.peer) && peers.insert(report.peer).second;
  });
}

void RunPaths::add(ReplicaId from, const std::vector<PathReport>& reports) {
  if (!fits(from, reports)) return;
  if (heard_.contains(from)) compare();
  heard_.insert(from);
  reports_[from] = reports;
}

std::vector<Path> RunPaths::all() const {
  std::vector<Path> out;
  for (const auto& [from, reports] : reports_) {
    for (const auto& report : reports)
      out.push_back({names_.at(from), names_.at(report.peer), Time(report.round_trip), Time(report.shortest),
                     report.bytes_per_second, report.at_least});
  }
  std::ranges::sort(out, {}, [](const Path& path) { return Route{path.from, path.to}; });
  return out;
}

void RunPaths::compare() {
  heard_.clear();
  ++comparisons_;
  std::set<Route> before;
  for (auto& [route, slow] : slow_) {
    before.insert(route);
    ++slow.unknown_for;
  }
  for (const auto& seen : compare_paths(all(), before)) record(seen);
  std::erase_if(slow_, [&](const auto& entry) {
    const auto& [route, slow] = entry;
    if (slow.unknown_for < forgotten_after) return false;
    lines_.push_back(words_of(route) + ": its rate has not been known for " +
                     std::to_string(forgotten_after) + " heartbeats, so it is tried again");
    return true;
  });
}

void RunPaths::record(const Slowness& seen) {
  const bool sends = seen.route.to.empty(), gets = seen.route.from.empty();
  const auto who = words_of(seen.route);
  if (seen.factor < slow_until) {
    lines_.push_back(who + " as fast as the others again");
    slow_.erase(seen.route);
    return;
  }
  auto& slow = slow_[seen.route];
  slow.unknown_for = 0;
  slow.bytes_per_second = seen.bytes_per_second;
  if (slow.comparisons++ % say_every != 0) return;
  auto line = who + (sends || gets ? " " : " chunks ") + short_number(seen.factor) + "x slower than ";
  if (sends || gets) {
    line += sends ? "the others send: slow " : "the others receive: slow ";
    if (!seen.only.empty()) line += (sends ? "path to " : "path from ") + seen.only + ", ";
    line += "link or machine";
  } else {
    line += "their other paths: slow path, not a slow machine";
  }
  lines_.push_back(line + " (" + format_rate(8 * static_cast<double>(seen.bytes_per_second)) + ")");
}

std::vector<Route> RunPaths::slow() const {
  std::vector<Route> out;
  for (const auto& [route, slow] : slow_) out.push_back(route);
  return out;
}

RunPaths::Limits RunPaths::limits() const {
  Limits out;
  std::map<std::string, std::uint64_t> received;
  for (const auto& path : all()) {
    if (path.bound() == 0) continue;
    out.uplinks[path.from] = std::max(out.uplinks[path.from], path.bound());
    received[path.to] += path.bound();
  }
  for (const auto& [route, slow] : slow_) {
    if (slow.comparisons < counted_from) continue;
    if (route.from.empty() && received.contains(route.to)) out.downlinks[route.to] = received.at(route.to);
    if (!route.from.empty() && !route.to.empty())
      out.slow.push_back({route.from, route.to, slow.bytes_per_second});
  }
  return out;
}

}  // namespace isthmus::outer_sync::protocol
