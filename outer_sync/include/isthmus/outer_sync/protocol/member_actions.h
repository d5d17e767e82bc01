#pragma once
// The parts of driving a member that need no io: carrying out its actions, and keeping its complete rounds
// until they are applied. The io thread, the simulator and tests use it.

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "isthmus/outer_sync/protocol/member.h"

namespace isthmus::outer_sync::protocol {

/// Passes every pending action to `carry_out`, which needs an overload for each kind. Returns whether there
/// was any.
template <class Machine, class CarryOut>
bool carry_out_actions(Machine& member, CarryOut&& carry_out) {
  auto actions = member.take_actions();
  for (auto& action : actions) std::visit(carry_out, action);
  return !actions.empty();
}

/// Complete rounds between a member and its trainer: the member delivers them, the trainer takes and applies
/// them. A view may void rounds that are not applied.
template <class Result>
class DeliveredRounds {
 public:
  using Place = std::pair<FragmentId, Round>;

  void deliver(const Place& place, Result result) { complete_[place] = std::move(result); }
  /// Complete, and not taken.
  [[nodiscard]] const std::map<Place, Result>& complete() const { return complete_; }
  /// The trainer takes a round, if it is complete, and applies it from now on.
  [[nodiscard]] std::optional<Result> take(const Place& place) {
    auto found = complete_.extract(place);
    if (!found) return std::nullopt;
    taken_.insert(place);
    return std::move(found.mapped());
  }
  /// The trainer applies a round that did not come from `deliver`.
  void take_from_elsewhere(const Place& place) { taken_.insert(place); }
  void applied(const Place& place) { taken_.erase(place); }
  /// The trainer will not apply the rounds that it has taken.
  void forget_taken() { taken_.clear(); }

  /// Whether a view may begin here. Unless it continues this member's last view, it may withdraw rounds, so
  /// it cannot begin while a round is being applied.
  [[nodiscard]] bool may_begin_view(bool of_reference) const { return of_reference || taken_.empty(); }
  /// Call when a view has begun that is not of this member's reference. Returns false if a round is not here.
  bool withdraw(const std::vector<Place>& retracted) {
    bool all = true;
    for (const auto& place : retracted) all = complete_.erase(place) > 0 && all;
    return all && complete_.empty();
  }
  /// This member's state is void.
  void clear() { complete_.clear(); }

 private:
  std::map<Place, Result> complete_;
  std::set<Place> taken_;
};

}  // namespace isthmus::outer_sync::protocol
