// What must hold in every world (docs/protocol.md, Invariants).

#include "world.h"

#include <algorithm>
#include <utility>

namespace isthmus::outer_sync::protocol {

using namespace std::chrono_literals;

/// I1, I2: members of one view have one history.
void World::check_chain(const Process& process) {
  const auto view = process.member->view().number;
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    const auto& state = process.member->fragments()[p];
    const auto [place, is_new] = agreed_.try_emplace({view, p, state.round}, state.chain);
    if (!is_new && place->second != state.chain)
      return fail("member " + std::to_string(process.id) + " has another chain at round " +
                  std::to_string(state.round) + " of fragment " + std::to_string(p) + " in view " +
                  std::to_string(view) + " (I1, I2)");
  }
}

/// I3: a contribution is in the result or comes back, once. I4: nobody commits alone.
void World::check_result(const Process& process, const Deliver& round) {
  const auto first = layout_.chunks_of(round.fragment).first;
  const bool contributed = process.contributed[round.fragment] >= round.round;
  for (std::size_t i = 0; i < round.results.size(); ++i) {
    const auto known = results_.find(round.results[i].get());
    if (known == results_.end()) return fail("a result that nobody has made");
    const auto& [contributors, of] = known->second;
    if (contributors.size() < closing_.least)
      return fail("a result of " + std::to_string(contributors.size()) + " contributions (I4)");
    if (contributors.size() < of && (closing_.quorum == 0 || contributors.size() < closing_.quorum))
      return fail("a result without a quorum (I4)");
    const bool in_it = std::ranges::find(contributors, process.replica) != contributors.end();
    if (in_it != round.included[i])
      return fail("member " + std::to_string(process.id) + " was told " +
                  (in_it ? "that its contribution is not in a result that contains it"
                         : "that its contribution is in a result that does not contain it") +
                  " (I3)");
    if (!contributed) {
      if (in_it) return fail("a contribution that was not made is in a result (I3)");
      continue;
    }
    auto& made = made_.at({process.replica, round.round, static_cast<ChunkId>(first + i)});
    if (++made.settled > 1) return fail("a contribution is settled twice (I3)");
    count(in_it ? "contribution committed" : "contribution returned");
  }
}

/// I6.
void World::check(const Process& process) {
  const auto chunks = layout_.chunk_count();
  const auto most =
      chunks + chunks * members_ * (Member::window + 1) + chunks * (Member::most_kept + Member::window + 1);
  if (process.member->chunks_held() > most)
    fail("member " + std::to_string(process.id) + " holds " + std::to_string(process.member->chunks_held()) +
         " chunks; " + std::to_string(most) + " can be needed (I6)");
  const auto most_sent = chunks * members_ * (Member::most_kept + Member::window + 1);
  if (process.member->unacknowledged() > most_sent) fail("too many messages are kept (I6)");
}

/// I5: once all faults have ended, all take part and every fragment gets on. A view change may be under way
/// at any moment, so it is enough that there is one without.
void World::check_end() {
  auto missing = missing_at_the_end();
  over_ = missing.empty();
  if (over_) return;
  if (now_ >= end_ + longest_view_change) return fail(missing + " although all faults have ended (I5)");
  at(heartbeat, [this] { check_end(); });
}

std::string World::missing_at_the_end() {
  const auto knows = [](const Process& process) { return process.alive && process.member && process.in_run; };
  if (std::ranges::none_of(processes_, knows)) {
    count("state lost with all who had it");
    return {};
  }
  if (!coordinator_) return "there is no coordinator";
  for (const auto& process : processes_) {
    const auto name = "member " + std::to_string(process.id);
    if (!knows(process)) return name + " does not take part";
    if (process.member->view().number != coordinator_->view() || !process.member->in_view())
      return name + " is in view " + std::to_string(process.member->view().number) + ", the coordinator in " +
             std::to_string(coordinator_->view()) + ",";
    for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
      const auto round = process.member->fragments()[p].round;
      if (round < calm_rounds_[p] + rounds_in_calm)
        return "fragment " + std::to_string(p) + " stays at round " + std::to_string(round) + " at " + name;
    }
  }
  return {};
}

}  // namespace isthmus::outer_sync::protocol
