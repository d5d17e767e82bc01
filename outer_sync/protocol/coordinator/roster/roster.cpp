#include "isthmus/outer_sync/protocol/coordinator/roster/roster.h"

namespace isthmus::outer_sync::protocol {

std::size_t trainers_among(const std::vector<MemberInfo>& members) {
  return static_cast<std::size_t>(
      std::ranges::count_if(members, [](const MemberInfo& member) { return trains(member); }));
}

ViewNumber begun(const MemberStatus& member) {
  return std::max({member.hello.activated, member.heartbeat.view, member.state.activated});
}

std::vector<Round> rounds_of(const MemberStatus& member) {
  std::vector<Round> rounds;
  for (const auto& fragment : member.state.fragments) rounds.push_back(fragment.round);
  const auto& reported = member.heartbeat.fragments;
  for (std::size_t p = 0; p < rounds.size() && reported.size() == rounds.size(); ++p)
    rounds[p] = std::max(rounds[p], reported[p].first);
  return rounds;
}

std::vector<Round> reported_rounds(const MemberStatus& member) {
  std::vector<Round> rounds;
  for (const auto& fragment : member.heartbeat.fragments) rounds.push_back(fragment.first);
  return rounds;
}

void raise(std::vector<Round>& newest, const std::vector<Round>& rounds) {
  newest.resize(std::max(newest.size(), rounds.size()), 0);
  for (std::size_t p = 0; p < rounds.size(); ++p) newest[p] = std::max(newest[p], rounds[p]);
}

bool is_past_warmup(const MemberStatus& member, Round warmup_rounds) {
  const auto& fragments = member.heartbeat.fragments;
  return warmup_rounds == 0 ||
         (!fragments.empty() && std::ranges::all_of(fragments, [&](const auto& fragment) {
           return fragment.first >= warmup_rounds;
         }));
}

void append(std::string& list, const std::string& name, const char* separator) {
  list += (list.empty() ? "" : separator) + name;
}

const MemberStatus* Roster::find(const std::string& name) const {
  const auto place = members_.find(name);
  return place == members_.end() ? nullptr : &place->second;
}
MemberStatus* Roster::find(const std::string& name) {
  const auto place = members_.find(name);
  return place == members_.end() ? nullptr : &place->second;
}

MemberStatus& Roster::add(ConnectionId from, const Hello& hello) {
  auto& member = members_[hello.member.name];
  member.connection = from;
  member.hello = hello;
  member.heard = now_;
  member.uplink = member.usual_uplink = hello.uplink;
  member.calendar = Calendar::parse(hello.calendar);
  return member;
}

void Roster::remove(const std::string& name) {
  const auto place = members_.find(name);
  foreign_leases_end_ = std::max(foreign_leases_end_, place->second.lease_end);
  members_.erase(place);
}

std::string Roster::name_of(ConnectionId connection) const {
  for (const auto& [name, member] : members_) {
    if (member.connection == connection) return name;
  }
  return {};
}

std::size_t Roster::trainers() const {
  return count([](const MemberStatus& member) { return trains(member); });
}

std::size_t Roster::able_trainers() const {
  return count([this](const MemberStatus& member) { return able(member) && trains(member); });
}

std::size_t Roster::unanswered() const {
  return count([this](const MemberStatus& member) { return able(member) && !member.answered; });
}

std::string Roster::names_in_view() const {
  std::string out;
  for (const auto& [name, member] : members_) {
    if (member.role == Role::member) append(out, name);
  }
  return out;
}

const MemberStatus* Roster::first_trainer() const {
  const auto place = std::ranges::find_if(
      members_, [](const auto& entry) { return trains(entry.second) && !entry.second.has_nothing; });
  return place == members_.end() ? nullptr : &place->second;
}

bool Roster::able(const MemberStatus& member) const {
  if (member.closed || (member.role != Role::member && member.role != Role::ready)) return false;
  return !bars_.contains(member.hello.member.name, now_);
}

std::optional<std::string> Roster::take_bar_over() {
  return bars_.take_over(now_, [this](const std::string& name) { return members_.contains(name); });
}

bool Roster::leases_are_out() const {
  const auto out = [&](Time end) { return now_ >= end; };
  return out(foreign_leases_end_) && std::ranges::all_of(members_, [&](const auto& entry) {
           return entry.second.answered || out(entry.second.lease_end);
         });
}

std::uint16_t Roster::claim_slot(const std::string& name) {
  const auto taken = [&](std::uint16_t slot) {
    return std::ranges::any_of(members_, [&](const auto& entry) {
      const auto place = slots_.find(entry.first);
      return entry.first != name && place != slots_.end() && place->second == slot;
    });
  };
  if (const auto own = slots_.find(name); own != slots_.end() && !taken(own->second)) return own->second;
  std::uint16_t slot = 0;
  while (taken(slot)) ++slot;
  return slots_[name] = slot;
}

std::vector<MemberInfo> Roster::with_state(Round warmup_rounds) const {
  ViewNumber highest = 0;
  for (const auto& [name, member] : members_) {
    if (able(member) && trains(member)) highest = std::max(highest, begun(member));
  }
  std::vector<MemberInfo> out;
  for (const auto& [name, member] : members_) {
    const bool current =
        member.role == Role::member || (highest > 0 && able(member) && begun(member) == highest);
    if (current && trains(member) && is_past_warmup(member, warmup_rounds))
      out.push_back(member.hello.member);
  }
  return out;
}

}  // namespace isthmus::outer_sync::protocol
