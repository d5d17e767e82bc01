#include "transport/follower_side.h"

#include <chrono>
#include <mutex>
#include <utility>

#include "transport/duration.h"

namespace isthmus::outer_sync::transport {

using protocol::Round;
using Clock = std::chrono::steady_clock;

FollowerSide::FollowerSide(const NetworkConfig& network, Rendezvous& meet, NetworkSide& side)
    : network_(network), meet_(meet), side_(side) {}

void FollowerSide::catch_up(OuterLoop& loop) {
  loop.finish_hand_overs();
  meet_.update([&] {
    meet_.order.forget();
    meet_.audits.clear();
  });
  for (;;) {
    std::unique_lock lock(meet_.mutex);
    meet_.wait_for(lock, [&] { return meet_.has_lesson() || meet_.view.has_value(); });
    if (meet_.view) {
      meet_.displaced.reset();
      const auto step = meet_.agreed_step;
      lock.unlock();
      return loop.begin_at(step);
    }
    const auto lesson = std::move(meet_.lessons.front());
    meet_.lessons.pop_front();
    if (const auto* round = std::get_if<FollowedRound>(&lesson))
      meet_.taken.insert({round->fragment, round->round});
    lock.unlock();
    learn_from(loop, lesson);
  }
}

bool FollowerSide::follow(OuterLoop& loop, const std::vector<Round>& until) {
  const auto patience = to_duration(network_.detect_timeout);
  std::unique_lock lock(meet_.mutex);
  for (auto begin = Clock::now();;) {
    if (meet_.failure) throw *meet_.failure;
    if (const auto lesson = next_lesson(loop, until)) {
      lock.unlock();
      learn_from(loop, *lesson);
      return true;
    }
    const bool finished = meet_.finished.has_value();
    if (finished && (meet_.behind == Round{0} || meet_.nothing_comes || Clock::now() >= begin + patience))
      return false;
    meet_.await_change(lock, begin + patience);
    if (!finished) begin = Clock::now();
  }
}

/// The first that may be taken now, under the lock. A fragment that was fetched anew is past some that came
/// before it.
std::optional<Lesson> FollowerSide::next_lesson(const OuterLoop& loop, const std::vector<Round>& until) {
  auto& lessons = meet_.lessons;
  for (auto at = lessons.begin(); at != lessons.end();) {
    const auto* round = std::get_if<FollowedRound>(&*at);
    const bool stale = round != nullptr && round->round <= loop.fragments()[round->fragment].round &&
                       meet_.installed.contains(round->fragment);
    if (stale || round == nullptr || round->round <= until.at(round->fragment)) {
      std::optional<Lesson> lesson;
      if (!stale) lesson = std::move(*at);
      at = lessons.erase(at);
      if (lesson) return lesson;
    } else {
      ++at;
    }
  }
  return std::nullopt;
}

void FollowerSide::learn_from(OuterLoop& loop, const Lesson& lesson) {
  if (const auto* anew = std::get_if<BeginAnew>(&lesson)) {
    meet_.update([&] {
      meet_.taken.clear();  // what was taken of old is not applied any more
      meet_.installed.clear();
    });
    side_.attempt_begun(anew->attempt);
  } else if (const auto* snapshot = std::get_if<outer_sync::FragmentSnapshot>(&lesson)) {
    loop.install(*snapshot);
    meet_.update([&] { meet_.installed.insert(snapshot->fragment); });
    side_.learned(snapshot->fragment, snapshot->state);
  } else if (const auto* settings = std::get_if<protocol::Settings>(&lesson)) {
    loop.adopt(*settings);
  } else {
    const auto& round = std::get<FollowedRound>(lesson);
    loop.follow(round.fragment, round.results);  // which says `applied`
  }
}

bool FollowerSide::has_state() const {
  const std::lock_guard lock(meet_.mutex);
  return meet_.installed.size() == side_.workshop().layout.fragment_count();
}

bool FollowerSide::is_current() const {
  const std::lock_guard lock(meet_.mutex);
  return meet_.lessons.empty() && meet_.behind && *meet_.behind <= (meet_.finished ? 0 : 1);
}

}  // namespace isthmus::outer_sync::transport
