// Orders of operators and of the coordinator itself: changes of settings, and checkpoints of all trainers at
// one step (docs/protocol.md, Steering and Checkpoints). No agreed state depends on a checkpoint: if a
// trainer has missed the step, another one is ordered.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"

namespace isthmus::outer_sync::protocol {
namespace {

/// The highest plausible speed of a trainer. A replica that has just copied the state has skipped steps,
/// which look like speed: so a trainer is no faster than the fastest inner steps, or than another trainer.
double highest_speed(const Roster& roster) {
  double fastest = 0, next = 0, computes = 0;
  for (const auto& [name, member] : roster.members()) {
    if (!trains(member)) continue;
    const auto recent = member.rates.steps_per_second();
    next = std::max(next, std::min(fastest, recent));
    fastest = std::max(fastest, recent);
    computes = std::max(computes, member.heartbeat.inner_steps_per_second);
  }
  return computes > 0 && roster.trainers() > 1 ? std::min(fastest, std::max(next, computes)) : fastest;
}

/// A step that no trainer will have done before all have received an order, at their recent speed.
std::uint64_t step_ahead_of_all(const Roster& roster, Time now) {
  constexpr Time on_the_way = std::chrono::seconds(1);
  const auto highest = highest_speed(roster);
  double reached = 0;
  for (const auto& [name, member] : roster.members()) {
    if (!trains(member)) continue;
    const auto seconds = std::chrono::duration<double>(now - member.beat + on_the_way).count();
    const auto speed = std::min(member.rates.steps_per_second(), highest);
    const auto made = static_cast<double>(member.heartbeat.step) + speed * seconds;
    reached = std::max(reached, made);
  }
  return static_cast<std::uint64_t>(std::ceil(reached));
}

}  // namespace

// ---- settings ----

/// Why neither settings can change nor a checkpoint be ordered at present; empty: they can.
std::string Coordinator::reason_not_to_steer() const {
  if (ending_.has_begun()) return "the run is ending";
  if (gathers()) return "the run has not begun yet";
  if (is<phase::Suspended>()) return "rounds do not commit at present: " + obstacle();
  return {};
}

Steering::Situation Coordinator::situation() const {
  return {options_, roster_,
          options_.elastic ? reason_not_to_steer()
                           : "a data-parallel run has no views, so its settings cannot change"};
}

void Coordinator::propose(const ConfigItems& items, const std::string& by, const std::string& why) {
  carry_out(steering_.propose(items, by, why, situation(), out_), 0);
}

void Coordinator::carry_out(const Steering::Order& order, ConnectionId from) {
  switch (order.what) {
    case Steering::Order::What::nothing:
      return;
    case Steering::Order::What::change_view:
      return change_view(order.why);
    case Steering::Order::What::stop:
      return request_stop(order.why);
    case Steering::Order::What::checkpoint:
      if (const auto problem = order_checkpoint(order.why); !problem.empty())
        return steering_.refuse(from, problem, out_);
      return steering_.answer(from, "checkpoint_after_step", checkpoints_.ordered(), out_);
  }
}

// ---- checkpoints ----

std::string Coordinator::order_checkpoint(const std::string& why) {
  if (auto reason = reason_not_to_steer(); !reason.empty()) return reason;
  if (steering_.paused()) return "the run is paused, so no later step would be reached; resume it first";
  const auto step = step_ahead_of_all(roster_, now_) + checkpoints_.steps_to_spare();
  if (options_.steps > 0 && step >= options_.steps)
    return "step " + std::to_string(step) +
           " is the earliest that can be announced to all in time, and the run ends at step " +
           std::to_string(options_.steps);
  // The last order is still open, although some have written checkpoints.
  const bool disks_are_slow = checkpoints_.is_open() && roster_.count([](const MemberStatus& member) {
    return !member.heartbeat.checkpoints.empty();
  }) > 0;
  checkpoints_.order(step, now_, disks_are_slow);
  if (checkpoints_.is_open()) send_to_trainers(CheckpointAt{step});
  out_.say("all write a checkpoint after step " + std::to_string(step) + " (" + why + ")");
  return {};
}

/// For a member that is about to leave, or that has missed the last checkpoint. Gets no answer.
void Coordinator::request_checkpoint(const std::string& by, const std::string& why) {
  const bool open = checkpoints_.is_open();
  if (open && roster_.members().at(by).heartbeat.step < checkpoints_.ordered())
    return;  // the pending one is still ahead
  if (open) checkpoints_.missed();
  static_cast<void>(order_checkpoint(by + ": " + why));  // if none can be ordered, it goes without
}

/// The interval counts from the last complete checkpoint, including requested ones.
void Coordinator::order_checkpoint_if_due() {
  if (!is<phase::Running>() || !checkpoints_.is_due(now_)) return;
  if (steering_.paused() || !reason_not_to_steer().empty()) return;
  if (!order_checkpoint("run.checkpoint_interval").empty())  // near the end, which brings a checkpoint anyway
    checkpoints_.postpone(now_);
}

}  // namespace isthmus::outer_sync::protocol
