#include "transport/reducer_side.h"

#include <algorithm>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/log/chain.h"

namespace isthmus::outer_sync::transport {

using protocol::FragmentState;

std::optional<std::string> ReducerSide::follow() {
  std::unique_lock lock(meet_.mutex);
  for (;;) {
    auto next = meet_.results.end();
    meet_.changed.wait(lock, [&] {
      next = next_to_follow();
      return meet_.failure || meet_.finished || meet_.gone || next != meet_.results.end();
    });
    if (meet_.finished) return meet_.finished->problem;
    if (meet_.gone) return std::nullopt;
    if (meet_.failure) throw *meet_.failure;
    const auto [fragment, round] = next->first;
    auto result = std::move(next->second);
    const auto before = meet_.followed[fragment].chain;
    const auto life = meet_.life;
    meet_.results.erase(next);
    meet_.taken.insert({fragment, round});
    lock.unlock();
    std::vector<std::span<const std::byte>> bytes;
    for (const auto& chunk : result.chunks) bytes.emplace_back(*chunk);
    const FragmentState state{round, log::next_chain(before, fragment, round, bytes)};
    lock.lock();
    if (life == meet_.life) meet_.followed[fragment] = state;
    side_.followed(fragment, state, std::move(result.samples), life);
  }
}

/// Under the lock. Rounds of a fragment may be complete in any order; they are followed in theirs.
std::map<Rendezvous::Place, RoundResult>::iterator ReducerSide::next_to_follow() {
  return std::ranges::find_if(meet_.results, [this](const auto& entry) {
    const auto [fragment, round] = entry.first;
    return fragment < meet_.followed.size() && round == meet_.followed[fragment].round + 1;
  });
}

}  // namespace isthmus::outer_sync::transport
