// Checkpoints of all trainers at one step (docs/protocol.md, Checkpoints). No agreed state depends on them:
// if a trainer has missed the step, another one is ordered.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "protocol/coordinator/members.h"

namespace isthmus::outer_sync::protocol {
namespace {

using Checkpoints = std::vector<CheckpointId>;

/// The newest checkpoint in all selected lists; step 0 if fewer than `least` are selected.
template <class Select>
CheckpointId newest_of(const std::vector<Checkpoints>& lists, std::size_t least, Select select) {
  std::vector<Checkpoints> theirs;
  std::ranges::copy_if(lists, std::back_inserter(theirs), select);
  return theirs.size() >= least ? newest_in_all(std::move(theirs)) : CheckpointId{};
}

}  // namespace

CheckpointId newest_in_all(std::vector<std::vector<CheckpointId>> lists) {
  std::optional<std::vector<CheckpointId>> common;
  for (auto& list : lists) {
    std::ranges::sort(list);
    std::vector<CheckpointId> both;
    if (common) std::ranges::set_intersection(*common, list, std::back_inserter(both));
    common = common ? std::move(both) : std::move(list);
  }
  return !common || common->empty() ? CheckpointId{} : common->back();
}

CheckpointId checkpoint_to_go_back_to(const std::vector<Checkpoints>& lists, std::size_t least,
                                      std::uint64_t complete) {
  const auto was_there = [&](const Checkpoints& own) {
    return std::ranges::any_of(own, [&](const auto& one) { return one.step >= complete; });
  };
  const auto has_that = [&](const Checkpoints& own) {
    return std::ranges::any_of(own, [&](const auto& one) { return one.step == complete; });
  };
  const auto has_any = [](const Checkpoints& own) { return !own.empty(); };
  if (const auto newest = newest_of(lists, least, was_there); newest.step > 0 && newest.step >= complete)
    return newest;
  if (const auto newest = newest_of(lists, least, has_that); newest.step > 0 && newest.step >= complete)
    return newest;
  return newest_of(lists, least, has_any);
}

/// A step that no trainer will have done before all have received the order, at their recent speed.
std::uint64_t Coordinator::step_ahead_of_all() const {
  constexpr Time on_the_way = std::chrono::seconds(1);
  double reached = 0;
  for (const auto& [name, member] : members_) {
    if (!trains(member)) continue;
    const auto seconds = std::chrono::duration<double>(now_ - member.beat + on_the_way).count();
    const auto made = static_cast<double>(member.heartbeat.step) + member.rates.steps_per_second() * seconds;
    reached = std::max(reached, made);
  }
  return static_cast<std::uint64_t>(std::ceil(reached)) + checkpoints_.steps_to_spare();
}

std::string Coordinator::reason_for_no_checkpoint() const {
  if (stopping_ || ending_) return "the run is ending";
  if (phase_ == Phase::joining) return "the run has not begun yet";
  if (phase_ == Phase::suspended) return "rounds do not commit at present: " + suspended_because_;
  if (settings_.pause_after != Settings::never)
    return "the run is paused, so no later step would be reached; resume it first";
  return {};
}

/// The last order is still open, although some have written checkpoints.
bool Coordinator::disks_are_slow() const {
  return checkpoints_.is_open() && std::ranges::any_of(members_, [](const auto& entry) {
           return !entry.second.heartbeat.checkpoints.empty();
         });
}

std::string Coordinator::order_checkpoint(const std::string& why) {
  if (auto reason = reason_for_no_checkpoint(); !reason.empty()) return reason;
  const auto step = step_ahead_of_all();
  if (options_.steps > 0 && step >= options_.steps)
    return "step " + std::to_string(step) +
           " is the earliest that can be announced to all in time, and the run ends at step " +
           std::to_string(options_.steps);
  checkpoints_.order(step, now_, disks_are_slow());
  tell_of_checkpoint();
  say("all write a checkpoint after step " + std::to_string(step) + " (" + why + ")");
  return {};
}

/// For a member that is about to leave, or that has missed the last checkpoint. Gets no answer.
void Coordinator::request_checkpoint(const std::string& by, const std::string& why) {
  const bool open = checkpoints_.is_open();
  if (open && members_.at(by).heartbeat.step < checkpoints_.ordered())
    return;  // the pending one is still ahead
  if (open) checkpoints_.missed();
  static_cast<void>(order_checkpoint(by + ": " + why));  // if none can be ordered, it goes without
}

/// Also repeats the order to trainers that enter a view before the step is reached.
void Coordinator::tell_of_checkpoint() {
  if (!checkpoints_.is_open()) return;
  for (const auto& [name, member] : members_) {
    if (trains(member)) send(member, CheckpointAt{checkpoints_.ordered()});
  }
}

/// The interval counts from the last complete checkpoint, including requested ones.
void Coordinator::order_checkpoint_if_due() {
  if (phase_ != Phase::running || !checkpoints_.is_due(now_) || !reason_for_no_checkpoint().empty()) return;
  if (!order_checkpoint("run.checkpoint_interval").empty())  // near the end, which brings a checkpoint anyway
    checkpoints_.postpone(now_);
}

void Coordinator::note_checkpoint(std::uint64_t common) {
  if (!checkpoints_.note_complete(common, now_) || !options_.last) return;
  options_.last->checkpoint = common;
  actions_.push_back(Store{.view = *options_.last, .line = {}, .again = true});
}

}  // namespace isthmus::outer_sync::protocol
