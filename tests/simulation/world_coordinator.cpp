// The coordinator of a world: its messages and its losses.

#include "world.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

namespace isthmus::outer_sync::protocol {

using namespace std::chrono_literals;

void World::start_coordinator(bool recover) {
  ++coordinator_life_;
  answers_.clear();  // they went to the previous coordinator, which may have used the same view number
  auto options = options_;
  options.token.bytes.fill(static_cast<std::uint8_t>(coordinator_life_));
  if (recover) {
    options.recover = static_cast<ViewNumber>(now_.count());
    options.before = disk_;
    for (const auto& process : processes_) options.given_up.insert("m" + std::to_string(process.id));
    settled_.clear();
    checked_ = 0;  // an operator has given up the last view
  } else {
    options.last = disk_;
  }
  coordinator_ = std::make_unique<Coordinator>(options, now_);
  tell(std::string("the coordinator starts") + (recover ? " to recover" : disk_ ? " from its disk" : ""));
  const auto tick = [this](const auto& self) -> void {
    at(tick_every, [this, self, life = coordinator_life_] {
      if (!coordinator_ || life != coordinator_life_) return;
      coordinator_->tick(now_);
      act_coordinator();
      self(self);
    });
  };
  tick(tick);
}

void World::listen(const std::string& said) {
  tell("coordinator: " + said);
  constexpr std::array counted{
      std::pair{"is left out", "left out for want of a link"},
      std::pair{"their chunks are relayed by", "relay named"},
      std::pair{"their chunks are no longer relayed", "relay ended"},
      std::pair{"the others are at", "evicted for its lag"},
      std::pair{"no member holds", "came back too late"},
      std::pair{"is not one of the run's", "had another history"},
      std::pair{"begins anew", "run begun anew"},
      std::pair{"the rounds wait for it", "rounds held for a newcomer"},
  };
  for (const auto& [words, what] : counted) {
    if (said.find(words) != std::string::npos) count(what);
  }
  if (severed_pair_ && said.find("is left out") != std::string::npos)
    fail("a member is left out although another member reaches both (I5)");
}

/// Inspects the coordinator's messages before they are sent.
void World::watch(NodeId to, const ControlMessage& message) {
  if (const auto* view = std::get_if<NewView>(&message)) {
    if (view->view.number > checked_) check_view(*view);
    const auto answer = answers_.find(to);
    if (lonely_ && view->reference > 0 && answer != answers_.end() && answer->second.sealed.activated == 0)
      at(Time(1), [this, to] { leave_alone(to); });
    ambush(Moment::view_sent, to);
  } else if (std::holds_alternative<Seal>(message)) {
    ambush(Moment::seal_sent, to);
  } else if (const auto* evicted = std::get_if<Evicted>(&message)) {
    check_evicted(to, evicted->reason);
  }
}

/// A member is refused by a run that has begun anew without it: it is started again.
void World::obey(Process& process, const Refused& refused) {
  if (refused.reason.find("has been in another run") == std::string::npos)
    return fail("member " + std::to_string(process.id) + " was refused: " + refused.reason + " (I11)");
  count("refused by a run that began anew");
  start_again(process);
}

bool World::state_is_lost() const {
  return std::ranges::none_of(processes_, [this](const Process& process) {
    return process.id != reducer_ && process.alive && process.member && process.in_run;
  });
}

/// Does what an operator does at the coordinator's request: starts it with --recover and, if no member with
/// the state is left, restarts the others.
void World::recover_if_the_survivors_are_gone() {
  if (state_is_lost()) {
    for (auto& process : processes_) {
      if (process.used) start_again(process);
    }
  }
  if (!disk_) return;
  const auto is_here = [this](const MemberInfo& info) {
    const auto& process = processes_[node_of(info)];
    return trains(info) && process.alive && process.in_run && process.incarnation == info.incarnation;
  };
  if (std::ranges::any_of(disk_->members, is_here)) return;
  count("operator recovers the run");
  crash_coordinator(false);
  start_coordinator(true);
}

void World::crash_coordinator(bool lose_disk) {
  if (!coordinator_) return;
  tell(std::string("the coordinator crashes") + (lose_disk ? " and loses its disk" : ""));
  count(lose_disk ? "coordinator and its disk lost" : "coordinator crash");
  coordinator_.reset();
  if (lose_disk) {
    disk_.reset();
    disk_was_lost_ = true;
  }
  for (auto& [id, end] : std::exchange(control_, {})) break_link(end.first);
}

/// Marks all members that a plan evicts before any is checked, because their results do not count.
void World::note_evicted(const std::vector<CoordinatorAction>& actions) {
  for (const auto& action : actions) {
    const auto* send = std::get_if<SendControl>(&action);
    if (send == nullptr || !std::holds_alternative<Evicted>(send->message)) continue;
    const auto place = control_.find(send->to);
    if (place == control_.end()) continue;
    if (const auto answer = answers_.find(place->second.second); answer != answers_.end())
      answer->second.evicted = true;
  }
}

void World::act_coordinator() {
  if (!coordinator_) return;
  auto actions = coordinator_->take_actions();
  note_evicted(actions);
  for (auto& action : actions) {
    if (!coordinator_) return;
    if (auto* send = std::get_if<SendControl>(&action)) {
      if (const auto* answer = std::get_if<protocol::Answer>(&send->message)) {
        count(answer->problem.empty() ? "command carried out" : "command refused");
        tell("answer: " + answer->problem + answer->text);
      }
      const auto place = control_.find(send->to);
      if (place == control_.end()) continue;
      const auto m = place->second.second;
      watch(m, send->message);
      transmit(place->second.first, members_,
               [this, m, link = place->second.first, message = std::move(send->message)] {
                 if (processes_[m].control == link) on_control(m, message);
               });
    } else if (auto* close = std::get_if<CloseConnection>(&action)) {
      const auto place = control_.find(close->connection);
      if (place == control_.end()) continue;
      const auto [link, m] = place->second;
      control_.erase(place);
      if (!link->open) continue;
      link->open = false;  // messages that were sent arrive before the end does
      in(processes_[m], latency_ + 2ms, [this, link = link, m = m] { closed(link, m); });
    } else if (auto* say = std::get_if<Say>(&action)) {
      listen(say->text);
    } else if (std::holds_alternative<StatusAsked>(action)) {
      fail("a status was reported without a request");
    } else if (auto* store = std::get_if<Store>(&action)) {
      if (now_ < calm_from_ && chance(40) == 0) {
        count("disk full at the coordinator");
        return crash_coordinator(false);  // it must not continue with a view that it could not store
      }
      disk_ = store->view;
      listen(store->line);
      disk_was_lost_ = false;
      ambush(Moment::stored, chance(members_));
      if (now_ < calm_from_ && chance(60) == 0) return crash_coordinator(false);
    } else if (auto* ended = std::get_if<Ended>(&action)) {
      fail("the run ended: " + ended->reason + " (I11)");
    }
  }
}

}  // namespace isthmus::outer_sync::protocol
