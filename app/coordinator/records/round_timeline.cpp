#include "coordinator/records/round_timeline.h"

#include <algorithm>

#include "isthmus/outer_sync/config/settings_timeline.h"

namespace isthmus::app {

using outer_sync::FragmentId;
using outer_sync::Schedule;
using outer_sync::protocol::Coordinator;

using Json = nlohmann::ordered_json;

RoundTimeline::Round* RoundTimeline::find(FragmentId fragment, std::uint64_t round) {
  const auto rounds = rounds_.find(fragment);
  if (rounds == rounds_.end()) return nullptr;
  const auto at = std::ranges::find(rounds->second, round, &Round::round);
  return at == rounds->second.end() ? nullptr : &*at;
}

void RoundTimeline::look(double seconds, const Schedule& schedule, std::size_t fragments,
                         const std::vector<Member>& members) {
  const auto slowest = std::ranges::min_element(members, {}, &Member::step);
  slowest_ = slowest == members.end() ? std::nullopt : std::optional(*slowest);
  for (const auto& member : members) {
    const Seen now{seconds, member.step};
    const auto [place, is_new] = seen_.try_emplace(member.name, now);
    auto& before = place->second;
    if (is_new || before.step == now.step) continue;
    // A member that was resumed starts from an earlier step.
    if (now.step > before.step) advance(before, now, member, schedule, fragments);
    before = now;
  }
  std::erase_if(seen_, [&](const auto& entry) {
    return std::ranges::find(members, entry.first, &Member::name) == members.end();
  });
}

/// Assumes that all steps between two heartbeats took equally long.
void RoundTimeline::advance(const Seen& from, const Seen& to, const Member& member, const Schedule& schedule,
                            std::size_t fragments) {
  const auto made = static_cast<double>(to.step - from.step);
  const auto when = [&](std::uint64_t step) {  // it ended
    return from.seconds + (to.seconds - from.seconds) * static_cast<double>(step - from.step) / made;
  };
  for (FragmentId p = 0; p < fragments; ++p) {
    auto& rounds = rounds_[p];
    const auto last = schedule.rounds_sent(p, to.step);
    const auto first =
        std::max(schedule.rounds_sent(p, from.step), last - std::min<std::uint64_t>(last, kept));
    for (auto newest = first; newest < last; ++newest) {
      const auto round = newest + 1;
      auto* known = find(p, round);
      if (known == nullptr) {
        if (!rounds.empty() && round < rounds.back().round) continue;  // already dropped
        const auto step = schedule.send_step(p, round);
        rounds.push_back({.round = round,
                          .sent_step = step,
                          .apply_step = schedule.due_step(p, round),
                          .needed = {},
                          .committed = {}});
        if (rounds.size() > kept) rounds.pop_front();
        known = &rounds.back();
        if (const auto early = early_.find({p, round}); early != early_.end())
          known->committed = early->second;
        early_.erase(early_.lower_bound({p, 0}), early_.upper_bound({p, round}));
      }
      known->sent = std::max(known->sent, when(known->sent_step));
    }
    const double step_seconds = member.steps_per_second > 0 ? 1 / member.steps_per_second : 0;
    for (auto& round : rounds) {
      if (round.apply_step <= from.step || round.apply_step > to.step) continue;
      // This step's time includes the wait for the result. So add the time of a step without waiting to its
      // start.
      const double needed = std::min(when(round.apply_step - 1) + step_seconds, when(round.apply_step));
      round.needed = std::min(round.needed.value_or(needed), needed);
    }
  }
}

void RoundTimeline::look(double seconds, const Coordinator& coordinator,
                         const outer_sync::OuterConfig& outer) {
  if (!coordinator.layout() || coordinator.participating() == 0 || outer.data_parallel())
    return slowest_.reset();
  const auto fragments = coordinator.layout()->fragment_count();
  if (!schedule_ || settings_ != coordinator.settings()) {
    settings_ = coordinator.settings();
    fragments_ = fragments;
    schedule_.emplace(fragments, outer_sync::SettingsTimeline(outer, *settings_).phases(),
                      static_cast<std::uint64_t>(outer.sync_delay),
                      static_cast<std::uint64_t>(outer.warmup_steps));
  }
  std::vector<Member> members;
  for (const auto& [name, member] : coordinator.members()) {
    const bool counts =
        outer_sync::protocol::trains(member.hello.member) && member.role == Coordinator::Role::member;
    if (counts) members.push_back({name, member.heartbeat.step, member.heartbeat.inner_steps_per_second});
  }
  look(seconds, *schedule_, fragments, members);
}

void RoundTimeline::committed(double seconds, FragmentId fragment, std::uint64_t round) {
  constexpr std::size_t max_early_reports = 4096;
  if (auto* known = find(fragment, round)) {
    if (!known->committed) known->committed = seconds;
    return;
  }
  early_.try_emplace({fragment, round}, seconds);
  if (early_.size() > max_early_reports) early_.erase(early_.begin());
}

Json RoundTimeline::json(double seconds, std::size_t most) const {
  auto out = Json::array();
  const auto each = rounds_.empty() ? 0 : std::clamp<std::size_t>(most / rounds_.size(), 1, kept);
  for (const auto& [fragment, rounds] : rounds_) {
    if (out.size() + each > most) break;
    const auto shown = std::min(each, rounds.size());
    for (auto i = rounds.size() - shown; i < rounds.size(); ++i) {
      const auto& round = rounds[i];
      Json took, late;
      // The commit may be reported before the heartbeat of the last member that sent.
      if (round.committed) took = std::max(0.0, *round.committed - round.sent);
      if (round.committed && round.needed) late = *round.committed - *round.needed;
      out.push_back({{"fragment", fragment},
                     {"round", round.round},
                     {"sent_step", round.sent_step},
                     {"apply_step", round.apply_step},
                     {"sent_seconds_ago", seconds - round.sent},
                     {"took_seconds", took},
                     {"late_seconds", late}});
    }
  }
  return out;
}

Json RoundTimeline::timetable(const Schedule& schedule, std::size_t fragments, std::uint64_t last,
                              std::size_t most) const {
  auto out = Json::array();
  if (!slowest_ || slowest_->step >= last) return out;
  struct Next {
    std::uint64_t sent = 0, due = 0, round = 0;
    FragmentId fragment = 0;
    auto operator<=>(const Next&) const = default;
  };
  std::vector<Next> next;
  for (FragmentId p = 0; p < fragments; ++p) {
    const auto round = schedule.rounds_sent(p, slowest_->step) + 1;
    const Next of{schedule.send_step(p, round), schedule.due_step(p, round), round, p};
    if (of.sent <= last) next.push_back(of);
  }
  std::ranges::sort(next);
  const auto until = [this](std::uint64_t step) -> Json {
    if (slowest_->steps_per_second <= 0) return nullptr;
    return static_cast<double>(step - slowest_->step) / slowest_->steps_per_second;
  };
  for (const auto& of : next) {
    if (out.size() == most) break;
    out.push_back({{"fragment", of.fragment},
                   {"round", of.round},
                   {"sent_step", of.sent},
                   {"apply_step", of.due},
                   {"sent_in_seconds", until(of.sent)},
                   {"due_in_seconds", until(of.due)}});
  }
  return out;
}

Json RoundTimeline::timetable(std::uint64_t last, std::size_t most) const {
  return schedule_ ? timetable(*schedule_, fragments_, last, most) : Json::array();
}

}  // namespace isthmus::app
