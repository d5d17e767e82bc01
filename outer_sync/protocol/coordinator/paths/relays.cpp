#include "isthmus/outer_sync/protocol/coordinator/paths/relays.h"

#include <algorithm>
#include <tuple>

namespace isthmus::outer_sync::protocol {
namespace {

RunRelays::Pair pair_of(ReplicaId a, ReplicaId b) { return std::minmax(a, b); }

bool is_of(const RunRelays::Pair& pair, ReplicaId member) {
  return pair.first == member || pair.second == member;
}

}  // namespace

std::pair<std::string, std::string> RunRelays::names_of(const Pair& pair) const {
  return std::minmax(members_.at(pair.first).name, members_.at(pair.second).name);
}

void RunRelays::begin(const View& view) {
  members_.clear();
  reports_.clear();
  tried_.clear();
  doubted_.clear();
  in_mailbox_.clear();
  unused_since_.clear();
  lacking_since_.reset();
  named_since_ = false;
  for (const auto& member : view.members) {
    members_[id_of(member)] = member;
    if (can_be_dialled(member) && !has_port(member)) in_mailbox_.insert(id_of(member));
  }
  const bool had_relays = !relays_.empty();
  std::erase_if(relays_, [this](const auto& entry) {
    return !members_.contains(entry.first.first) || !members_.contains(entry.first.second);
  });
  std::set<Pair> to_help;
  for (const auto& [pair, by] : relays_) {
    if (!members_.contains(by)) to_help.insert(pair);
  }
  for (const auto& [a, one] : members_) {
    for (const auto& [b, other] : members_) {
      if (a >= b || relays_.contains({a, b})) continue;
      const bool needs_one = have_no_ports({a, b}) || known_.contains(names_of({a, b}));
      if (needs_one || share_a_mailbox({a, b})) to_help.insert({a, b});
    }
  }
  auto load = loads();
  for (const auto& pair : to_help) name_relay(pair, load);
  changed_ = true;
  // Sent again in each view: members that came back have not received the list.
  has_news_ = has_news_ || had_relays || !relays_.empty();
}

void RunRelays::add(ReplicaId from, const Heartbeat& heartbeat) {
  if (!members_.contains(from)) return;
  Report report{.heard = heartbeat.relays, .apart = {}, .unreachable = {}};
  // A member with a list of an earlier coordinator reports a higher number.
  number_ = std::max(number_, heartbeat.relays);
  if (heartbeat.unreachable.size() < members_.size() && heartbeat.relayed.size() < members_.size()) {
    for (const auto id : heartbeat.unreachable) report.unreachable.insert(id);
    report.apart = report.unreachable;
    for (const auto id : heartbeat.relayed) report.apart.insert(id);
    const auto is_no_peer = [&](ReplicaId id) { return id == from || !members_.contains(id); };
    std::erase_if(report.unreachable, is_no_peer);
    std::erase_if(report.apart, is_no_peer);
  }
  const auto known = reports_.find(from);
  if (known != reports_.end() && known->second == report) return;
  reports_.insert_or_assign(from, std::move(report));
  changed_ = true;
}

// ---- reports ----

bool RunRelays::have_no_ports(const Pair& pair) const {
  return !has_port(members_.at(pair.first)) && !has_port(members_.at(pair.second)) && !share_a_mailbox(pair);
}

/// They reach each other, through the mailbox. A relay is faster.
bool RunRelays::share_a_mailbox(const Pair& pair) const {
  return in_mailbox_.contains(pair.first) && in_mailbox_.contains(pair.second);
}

std::set<RunRelays::Pair> RunRelays::pairs_apart() const {
  std::set<Pair> pairs;
  for (const auto& [from, report] : reports_) {
    for (const auto to : report.apart) pairs.insert(pair_of(from, to));
  }
  for (const auto& [pair, by] : relays_) pairs.insert(pair);
  for (const auto& [a, one] : members_) {
    if (has_port(one)) continue;
    for (const auto& [b, other] : members_) {
      if (a < b && have_no_ports({a, b})) pairs.insert({a, b});
    }
  }
  return pairs;
}

bool RunRelays::are_apart(const Pair& pair) const {
  const auto says = [this](ReplicaId from, ReplicaId to) {
    const auto report = reports_.find(from);
    return report != reports_.end() && report->second.apart.contains(to);
  };
  return relays_.contains(pair) || have_no_ports(pair) || says(pair.first, pair.second) ||
         says(pair.second, pair.first);
}

/// Both ends have received the list of relays, and still report a connection to each other.
bool RunRelays::reach_each_other(const Pair& pair) const {
  const auto says_so = [this](ReplicaId from, ReplicaId to) {
    const auto report = reports_.find(from);
    return report != reports_.end() && report->second.heard == number_ && !report->second.apart.contains(to);
  };
  return says_so(pair.first, pair.second) && says_so(pair.second, pair.first);
}

bool RunRelays::reaches_both(const Pair& pair, ReplicaId relay) const {
  return !are_apart(pair_of(pair.first, relay)) && !are_apart(pair_of(pair.second, relay));
}

/// The pair has no relay, or its relay does not reach both ends, or an end still cannot reach the other.
bool RunRelays::lacks_help(const Pair& pair) const {
  const auto place = relays_.find(pair);
  if (place == relays_.end()) return true;
  const auto by = place->second;
  const auto loses = [this](ReplicaId from, ReplicaId to) {
    const auto report = reports_.find(from);
    return report != reports_.end() && report->second.unreachable.contains(to);
  };
  return !reaches_both(pair, by) || loses(pair.first, pair.second) || loses(pair.second, pair.first);
}

// ---- choosing relays ----

RunRelays::Loads RunRelays::loads() const {
  Loads loads;
  for (const auto& [pair, by] : relays_) ++loads[by];
  return loads;
}

std::optional<ReplicaId> RunRelays::relay_for(const Pair& pair, const Loads& loads) const {
  const auto tried = tried_.find(pair);
  std::optional<ReplicaId> best;
  std::tuple<std::size_t, bool, std::string> least;
  for (const auto& [id, member] : members_) {
    const bool is_end = is_of(pair, id), in_vain = tried != tried_.end() && tried->second.contains(id);
    if (is_end || in_vain || (share_a_mailbox(pair) && !has_port(member))) continue;
    if (!reaches_both(pair, id)) continue;
    const auto load = loads.find(id);
    const std::tuple cost(load == loads.end() ? 0 : load->second, trains(member), member.name);
    if (best && least <= cost) continue;
    best = id;
    least = cost;
  }
  return best;
}

bool RunRelays::name_relay(const Pair& pair, Loads& loads) {
  unused_since_.erase(pair);
  if (const auto before = relays_.find(pair); before != relays_.end()) {
    --loads[before->second];
    relays_.erase(before);
  }
  const auto by = relay_for(pair, loads);
  if (!by) return false;
  relays_[pair] = *by;
  ++loads[*by];
  has_news_ = true;
  if (known_.size() >= max_members) known_.clear();
  known_.insert(names_of(pair));
  const auto [one, other] = names_of(pair);
  lines_.push_back(one + " and " + other + " cannot reach each other; their chunks are relayed by " +
                   members_.at(*by).name);
  return true;
}

/// Whether the relay of two in the mailbox does not reach both, or they have not used it for `patience`: an
/// end may itself reach it only through the mailbox.
bool RunRelays::is_of_no_use(const Pair& pair, ReplicaId relay, Time now, Time patience) {
  if (!reaches_both(pair, relay)) return true;
  if (!reach_each_other(pair)) {
    unused_since_.erase(pair);
    return false;
  }
  if (now - unused_since_.try_emplace(pair, now).first->second < patience) return false;
  tried_[pair].insert(relay);
  return true;
}

/// A connection through the mailbox ends no relay, since a relay is faster.
void RunRelays::end_what_is_over(Time now, Time patience) {
  std::erase_if(relays_, [&](const auto& entry) {
    const auto& [pair, by] = entry;
    const bool mailbox = share_a_mailbox(pair);
    if (mailbox ? !is_of_no_use(pair, by, now, patience) : !reach_each_other(pair)) return false;
    const auto [one, other] = names_of(pair);
    has_news_ = true;
    if (mailbox) {
      unused_since_.erase(pair);
      lines_.push_back(members_.at(by).name + " no longer relays the chunks of " + one + " and " + other);
    } else {
      known_.erase({one, other});
      tried_.erase(pair);
      lines_.push_back(one + " and " + other + " are connected; their chunks are no longer relayed");
    }
    return true;
  });
}

/// One of the two is the other's relay to a third member, for which they need their connection.
bool RunRelays::relays_for_each_other(const Pair& pair) const {
  return std::ranges::any_of(relays_, [&](const auto& entry) {
    const auto& [ends, by] = entry;
    return (by == pair.first && is_of(ends, pair.second)) || (by == pair.second && is_of(ends, pair.first));
  });
}

/// A relay that was lost may be back, or another member may have connections to both now.
void RunRelays::relieve_the_mailbox() {
  if (in_mailbox_.size() == members_.size()) return;
  auto load = loads();
  for (const auto a : in_mailbox_) {
    for (const auto b : in_mailbox_) {
      const Pair pair{a, b};
      if (a < b && !relays_.contains(pair) && !relays_for_each_other(pair) && relay_for(pair, load))
        name_relay(pair, load);
    }
  }
}

std::vector<RunRelays::Pair> RunRelays::settle(Time now, Time patience) {
  const auto wait = named_since_ ? patience : patience / 2;
  const bool due = lacking_since_ && now - *lacking_since_ >= wait;
  const bool unused =
      std::ranges::any_of(unused_since_, [&](const auto& entry) { return now - entry.second >= patience; });
  if (!std::exchange(changed_, false) && !due && !unused) return {};
  end_what_is_over(now, patience);
  relieve_the_mailbox();
  std::vector<Pair> lacking;
  for (const auto& pair : pairs_apart()) {
    if (lacks_help(pair)) lacking.push_back(pair);
  }
  if (lacking.empty()) {
    lacking_since_.reset();
    named_since_ = false;
    return {};
  }
  if (!lacking_since_) lacking_since_ = now;
  if (!due) return {};
  std::vector<Pair> helpless;
  auto load = loads();
  for (const auto& pair : lacking) {
    const auto place = relays_.find(pair);
    const auto by = place == relays_.end() ? std::nullopt : std::optional(place->second);
    if (by) tried_[pair].insert(*by);
    if (name_relay(pair, load)) continue;
    // The end that has also lost its last relay may not have reported that yet. Until then it is unknown
    // which end to leave out.
    const bool explained = !by || !reaches_both(pair, *by);
    if (!explained && doubted_.insert(pair).second) {
      relays_[pair] = *by;
      ++load[*by];
    } else {
      helpless.push_back(pair);
    }
  }
  lacking_since_ = now;
  named_since_ = changed_ = has_news_ = true;
  return helpless;
}

std::optional<Relays> RunRelays::take_news() {
  if (!std::exchange(has_news_, false)) return std::nullopt;
  Relays news{.number = ++number_, .relays = {}};
  for (const auto& [pair, by] : relays_) news.relays.push_back({pair.first, pair.second, by});
  return news;
}

}  // namespace isthmus::outer_sync::protocol
