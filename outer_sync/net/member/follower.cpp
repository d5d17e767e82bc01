#include "net/member/follower.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>
#include <variant>

#include "config/duration.h"
#include "isthmus/outer_sync/log/chain.h"

namespace isthmus::outer_sync::transport {

using protocol::FragmentState;
using protocol::Round;
using Clock = std::chrono::steady_clock;

namespace {

/// Rounds of a fragment may complete in any order, but are followed in sequence.
std::optional<Place> next_to_follow(const Handover& both) {
  const auto& complete = both.rounds.complete();
  const auto next = std::ranges::find_if(complete, [&](const auto& entry) {
    const auto [fragment, round] = entry.first;
    return fragment < both.followed.size() && round == both.followed[fragment].round + 1;
  });
  return next == complete.end() ? std::nullopt : std::optional(next->first);
}

FragmentState state_after(const FragmentState& before, const Place& place, const RoundResult& result) {
  std::vector<std::span<const std::byte>> bytes;
  for (const auto& chunk : result.chunks) bytes.emplace_back(*chunk);
  return {place.second, log::next_chain(before.chain, place.first, place.second, bytes)};
}

}  // namespace

Follower::Follower(const NetworkConfig& network, const Waits& waits, MemberDriver& driver)
    : network_(network), waits_(waits), driver_(driver) {}

void Follower::catch_up(OuterLoop& loop) {
  loop.finish_hand_overs();
  waits_.shared.update([](TrainerView now) {
    now.both.order.forget();
    now.both.digests.clear();
  });
  for (;;) {
    std::optional<StateEvent> state_event;
    std::uint64_t step = 0;
    {
      auto now = waits_.shared.lock();
      waits_.wait_for(now, [&] { return now->has_state_event() || now->run.in_view(); });
      if (now->run.in_view()) {
        now->both.evicted.reset();
        step = now->run.agreed_step;
      } else {
        state_event = std::move(now->both.state_events.front());
        now->both.state_events.pop_front();
        if (const auto* round = std::get_if<FollowedRound>(&*state_event))
          now->both.rounds.take_from_elsewhere({round->fragment, round->round});
      }
    }
    if (!state_event) return loop.begin_at(step);
    learn_from(loop, *state_event);
  }
}

Following Follower::follow(OuterLoop& loop, const std::vector<Round>& until) {
  const auto patience = to_duration(network_.detect_timeout);
  std::optional<StateEvent> state_event;
  {
    auto now = waits_.shared.lock();
    for (auto begin = Clock::now();;) {
      if (now->both.failure) throw *now->both.failure;
      state_event = next_state_event(*now, loop, until);
      if (state_event) break;
      const auto& run = now->run;
      const bool finished = run.finished.has_value();
      if (finished &&
          (run.copying.behind == Round{0} || run.copying.nothing_comes || Clock::now() >= begin + patience))
        return {false, has_state(), is_current(*now)};
      waits_.await_change(now, begin + patience);
      if (!finished) begin = Clock::now();
    }
  }
  learn_from(loop, *state_event);
  return {true, has_state(), is_current(*waits_.shared.lock())};
}

/// The first event that may be applied now. Drops rounds that a newer snapshot of their fragment already
/// includes.
std::optional<StateEvent> Follower::next_state_event(TrainerView& now, const OuterLoop& loop,
                                                     const std::vector<Round>& until) const {
  auto& state_events = now.both.state_events;
  for (auto at = state_events.begin(); at != state_events.end();) {
    const auto* round = std::get_if<FollowedRound>(&*at);
    const bool stale = round != nullptr && round->round <= loop.fragments()[round->fragment].round &&
                       installed_.contains(round->fragment);
    if (stale || round == nullptr || round->round <= until.at(round->fragment)) {
      std::optional<StateEvent> state_event;
      if (!stale) state_event = std::move(*at);
      at = state_events.erase(at);
      if (state_event) return state_event;
    } else {
      ++at;
    }
  }
  return std::nullopt;
}

void Follower::learn_from(OuterLoop& loop, const StateEvent& state_event) {
  if (const auto* anew = std::get_if<BeginAnew>(&state_event)) {
    // Events taken from earlier attempts are not applied any more.
    waits_.shared.update([](TrainerView now) { now.both.rounds.forget_taken(); });
    installed_.clear();
    driver_.attempt_begun(anew->attempt);
  } else if (const auto* snapshot = std::get_if<outer_sync::FragmentSnapshot>(&state_event)) {
    loop.install(*snapshot);
    installed_.insert(snapshot->fragment);
    driver_.learned(snapshot->fragment, snapshot->state);
  } else if (const auto* settings = std::get_if<protocol::Settings>(&state_event)) {
    loop.adopt(*settings);
  } else {
    const auto& round = std::get<FollowedRound>(state_event);
    loop.follow(round.fragment, round.results);  // which calls `applied`
  }
}

bool Follower::has_state() const {
  return installed_.size() == driver_.codec_context().layout.fragment_count();
}

bool Follower::is_current(const TrainerView& now) {
  const auto& behind = now.run.copying.behind;
  return now.both.state_events.empty() && behind && *behind <= (now.run.finished ? 0 : 1);
}

std::optional<std::string> follow_as_reducer(const TrainerEnd& shared, MemberDriver& driver) {
  auto now = shared.lock();
  for (;;) {
    std::optional<Place> next;
    now.wait([&] {
      next = next_to_follow(now->both);
      return now->both.failure || now->run.finished || now->both.gone || next;
    });
    if (now->run.finished) return now->run.finished->problem;
    if (now->both.gone) return std::nullopt;
    if (now->both.failure) throw *now->both.failure;
    auto result = *now->both.rounds.take(*next);
    const auto before = now->both.followed[next->first];
    const auto life = now->both.life;
    FragmentState state;
    now.without([&] { state = state_after(before, *next, result); });
    if (life == now->both.life) now->both.followed[next->first] = state;
    driver.applied(next->first, state, std::move(result.samples), life);
  }
}

}  // namespace isthmus::outer_sync::transport
