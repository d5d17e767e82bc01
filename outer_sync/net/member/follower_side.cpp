#include "net/member/follower_side.h"

#include <chrono>
#include <mutex>
#include <utility>

#include "config/duration.h"

namespace isthmus::outer_sync::transport {

using protocol::Round;
using Clock = std::chrono::steady_clock;

FollowerSide::FollowerSide(const NetworkConfig& network, SharedState& meet, NetworkSide& side)
    : network_(network), shared_(meet), side_(side) {}

void FollowerSide::catch_up(OuterLoop& loop) {
  loop.finish_hand_overs();
  shared_.update([&] {
    shared_.order.forget();
    shared_.audits.clear();
  });
  for (;;) {
    std::unique_lock lock(shared_.mutex);
    shared_.wait_for(lock, [&] { return shared_.has_state_event() || shared_.view.has_value(); });
    if (shared_.view) {
      shared_.evicted.reset();
      const auto step = shared_.agreed_step;
      lock.unlock();
      return loop.begin_at(step);
    }
    const auto state_event = std::move(shared_.state_events.front());
    shared_.state_events.pop_front();
    if (const auto* round = std::get_if<FollowedRound>(&state_event))
      shared_.taken.insert({round->fragment, round->round});
    lock.unlock();
    learn_from(loop, state_event);
  }
}

bool FollowerSide::follow(OuterLoop& loop, const std::vector<Round>& until) {
  const auto patience = to_duration(network_.detect_timeout);
  std::unique_lock lock(shared_.mutex);
  for (auto begin = Clock::now();;) {
    if (shared_.failure) throw *shared_.failure;
    if (const auto state_event = next_state_event(loop, until)) {
      lock.unlock();
      learn_from(loop, *state_event);
      return true;
    }
    const bool finished = shared_.finished.has_value();
    if (finished && (shared_.behind == Round{0} || shared_.nothing_comes || Clock::now() >= begin + patience))
      return false;
    shared_.await_change(lock, begin + patience);
    if (!finished) begin = Clock::now();
  }
}

/// The first event that may be applied now; call under the lock. Drops rounds that a newer snapshot of their
/// fragment already includes.
std::optional<StateEvent> FollowerSide::next_state_event(const OuterLoop& loop,
                                                         const std::vector<Round>& until) {
  auto& state_events = shared_.state_events;
  for (auto at = state_events.begin(); at != state_events.end();) {
    const auto* round = std::get_if<FollowedRound>(&*at);
    const bool stale = round != nullptr && round->round <= loop.fragments()[round->fragment].round &&
                       shared_.installed.contains(round->fragment);
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

void FollowerSide::learn_from(OuterLoop& loop, const StateEvent& state_event) {
  if (const auto* anew = std::get_if<BeginAnew>(&state_event)) {
    shared_.update([&] {
      shared_.taken.clear();  // events taken from earlier attempts are not applied any more
      shared_.installed.clear();
    });
    side_.attempt_begun(anew->attempt);
  } else if (const auto* snapshot = std::get_if<outer_sync::FragmentSnapshot>(&state_event)) {
    loop.install(*snapshot);
    shared_.update([&] { shared_.installed.insert(snapshot->fragment); });
    side_.learned(snapshot->fragment, snapshot->state);
  } else if (const auto* settings = std::get_if<protocol::Settings>(&state_event)) {
    loop.adopt(*settings);
  } else {
    const auto& round = std::get<FollowedRound>(state_event);
    loop.follow(round.fragment, round.results);  // which calls `applied`
  }
}

bool FollowerSide::has_state() const {
  const std::lock_guard lock(shared_.mutex);
  return shared_.installed.size() == side_.codec_context().layout.fragment_count();
}

bool FollowerSide::is_current() const {
  const std::lock_guard lock(shared_.mutex);
  return shared_.state_events.empty() && shared_.behind && *shared_.behind <= (shared_.finished ? 0 : 1);
}

}  // namespace isthmus::outer_sync::transport
