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
    const auto made = static_cast<double>(member.heartbeat.step) + member.steps_per_second * seconds;
    reached = std::max(reached, made);
  }
  return static_cast<std::uint64_t>(std::ceil(reached)) + steps_to_spare_;
}

std::string Coordinator::reason_for_no_checkpoint() const {
  if (stopping_ || ending_) return "the run is ending";
  if (phase_ == Phase::joining) return "the run has not begun yet";
  if (phase_ == Phase::suspended) return "rounds do not commit at present: " + suspended_because_;
  if (settings_.pause_after != Settings::never)
    return "the run is paused, so no later step would be reached; resume it first";
  return {};
}

std::string Coordinator::order_checkpoint(const std::string& why) {
  if (auto reason = reason_for_no_checkpoint(); !reason.empty()) return reason;
  const auto step = step_ahead_of_all();
  if (options_.steps > 0 && step >= options_.steps)
    return "step " + std::to_string(step) +
           " is the earliest that can be announced to all in time, and the run ends at step " +
           std::to_string(options_.steps);
  // Slow or full disks do not get more and more orders.
  const bool writes_still =
      checkpoint_ordered_ > checkpoint_complete_ && std::ranges::any_of(members_, [](const auto& entry) {
        return !entry.second.heartbeat.checkpoints.empty();
      });
  constexpr int longest = 16;
  checkpoint_wait_ = writes_still ? std::min(2 * checkpoint_wait_, longest * options_.checkpoint_interval)
                                  : options_.checkpoint_interval;
  checkpoint_due_ = now_ + checkpoint_wait_;
  checkpoint_ordered_ = step;
  tell_of_checkpoint();
  say("all write a checkpoint after step " + std::to_string(step) + " (" + why + ")");
  return {};
}

/// For a member that is about to leave, or that has missed the last checkpoint. Gets no answer.
void Coordinator::request_checkpoint(const std::string& by, const std::string& why) {
  const bool open = checkpoint_ordered_ > checkpoint_complete_;
  if (open && members_.at(by).heartbeat.step < checkpoint_ordered_) return;  // the pending one is still ahead
  constexpr std::uint64_t max_to_spare = 1 << 16;
  if (open) steps_to_spare_ = std::min(2 * steps_to_spare_, max_to_spare);
  static_cast<void>(order_checkpoint(by + ": " + why));  // if none can be ordered, it goes without
}

/// Also repeats the order to trainers that enter a view before the step is reached.
void Coordinator::tell_of_checkpoint() {
  if (checkpoint_ordered_ <= checkpoint_complete_) return;
  for (const auto& [name, member] : members_) {
    if (trains(member)) send(member, CheckpointAt{checkpoint_ordered_});
  }
}

/// The interval counts from the last complete checkpoint, including requested ones.
void Coordinator::order_checkpoint_if_due() {
  if (options_.checkpoint_interval == Time{} || phase_ != Phase::running) return;
  if (!checkpoint_due_) checkpoint_due_ = now_ + options_.checkpoint_interval;
  if (now_ < *checkpoint_due_ || !reason_for_no_checkpoint().empty()) return;
  if (!order_checkpoint("run.checkpoint_interval").empty())  // near the end, which brings a checkpoint anyway
    checkpoint_due_ = now_ + options_.checkpoint_interval;
}

void Coordinator::note_checkpoint(std::uint64_t common) {
  if (common <= checkpoint_complete_) return;
  checkpoint_complete_ = common;
  checkpoint_wait_ = options_.checkpoint_interval;
  checkpoint_due_ = now_ + checkpoint_wait_;
  steps_to_spare_ = min_steps_to_spare;
  if (!options_.last) return;
  options_.last->checkpoint = common;
  actions_.push_back(Store{.view = *options_.last, .line = {}, .again = true});
}

}  // namespace isthmus::outer_sync::protocol
