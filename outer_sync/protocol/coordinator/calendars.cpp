// A member with a link that its calendar closes is in no view: the others continue without it, and it comes
// back as after any other absence. If a calendar changes a member's rate, the chunks are dealt again
// (docs/protocol.md, Calendars).

#include <string>
#include <utility>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"

namespace isthmus::outer_sync::protocol {

std::string Coordinator::allowance_of(const MemberStatus& member) const {
  return member.calendar.empty() ? std::string() : member.calendar.words_at(wall_);
}

/// Whether another deal of the chunks may help, and changes no bit: in the warm-up owners keep what their
/// codec lost.
bool Coordinator::may_deal_again() const {
  const bool by_rate =
      options_.topology.setting == Topology::automatic || options_.topology.setting == Topology::weighted;
  const auto in_warmup = [&](const MemberStatus& member) {
    return trains(member) && member.role == Role::member && !is_past_warmup(member, options_.warmup_rounds);
  };
  return by_rate && options_.elastic && options_.owners_keep_nothing && is<phase::Running>() &&
         roster_.count(in_warmup) == 0;
}

/// A run that is not elastic needs all its members, so it waits for a closed one.
void Coordinator::take_allowance(MemberStatus& member) const {
  const auto allowance = member.calendar.at(wall_);
  member.closed = options_.elastic && allowance && allowance->closed;
  if (std::exchange(member.allowance, allowance) == allowance) return;
  member.uplink = allowance ? allowance->bytes_per_second : member.usual_uplink;
}

void Coordinator::on_calendar(MemberStatus& member, const CalendarChanged& changed) {
  member.calendar = Calendar::parse(changed.calendar);
  follow_calendars(wall_);
}

void Coordinator::follow_calendars(WallTime wall) {
  if (is<phase::Over>()) return;
  wall_ = wall;
  std::string changes;
  for (auto& [name, member] : roster_.members()) {
    const bool was_closed = member.closed;
    const auto before = member.allowance;
    take_allowance(member);
    const bool leaves_view = member.closed && member.role == Role::member;
    // It was about to be in the view that forms.
    const bool leaves_answers = member.closed && !was_closed && is<phase::Changing>() && member.answered;
    const bool opens = was_closed && !member.closed && member.role == Role::ready;
    const bool changes_rate = before != member.allowance && member.role == Role::member;
    if (!leaves_view && !leaves_answers && !opens && !changes_rate) continue;
    if (leaves_view) member.role = Role::ready;
    const auto words = "calendar of " + name + ": " + allowance_of(member);
    if (leaves_view || leaves_answers || opens || (member.uplink > 0 && may_deal_again())) {
      append(changes, words, "; ");
    } else {
      out_.say(words);
    }
  }
  if (changes.empty() || gathers()) return;
  out_.say(changes);
  change_view(changes);
}

}  // namespace isthmus::outer_sync::protocol
