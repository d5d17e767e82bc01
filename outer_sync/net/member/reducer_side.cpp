#include "net/member/reducer_side.h"

#include <algorithm>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/log/chain.h"

namespace isthmus::outer_sync::transport {

using protocol::FragmentState;

std::optional<std::string> ReducerSide::follow() {
  std::unique_lock lock(shared_.mutex);
  for (;;) {
    auto next = shared_.results.end();
    shared_.changed.wait(lock, [&] {
      next = next_to_follow();
      return shared_.failure || shared_.finished || shared_.gone || next != shared_.results.end();
    });
    if (shared_.finished) return shared_.finished->problem;
    if (shared_.gone) return std::nullopt;
    if (shared_.failure) throw *shared_.failure;
    const auto [fragment, round] = next->first;
    auto result = std::move(next->second);
    const auto before = shared_.followed[fragment].chain;
    const auto life = shared_.life;
    shared_.results.erase(next);
    shared_.taken.insert({fragment, round});
    lock.unlock();
    std::vector<std::span<const std::byte>> bytes;
    for (const auto& chunk : result.chunks) bytes.emplace_back(*chunk);
    const FragmentState state{round, log::next_chain(before, fragment, round, bytes)};
    lock.lock();
    if (life == shared_.life) shared_.followed[fragment] = state;
    side_.followed(fragment, state, std::move(result.samples), life);
  }
}

/// Call under the lock. Rounds of a fragment may complete in any order, but are followed in sequence.
std::map<SharedState::Place, RoundResult>::iterator ReducerSide::next_to_follow() {
  return std::ranges::find_if(shared_.results, [this](const auto& entry) {
    const auto [fragment, round] = entry.first;
    return fragment < shared_.followed.size() && round == shared_.followed[fragment].round + 1;
  });
}

}  // namespace isthmus::outer_sync::transport
