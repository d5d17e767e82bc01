#include "isthmus/outer_sync/protocol/coordinator/observers.h"

#include <algorithm>

#include "isthmus/outer_sync/protocol/coordinator/admission.h"

namespace isthmus::outer_sync::protocol {

void refuse(ConnectionId connection, const std::string& reason, ActionQueue& out) {
  out.say_of_stranger("refused a worker: " + reason);
  out.send(connection, Refused{reason});
  out.close(connection);
}

std::size_t Observers::others_than(const std::string& name) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      observers_, [&](const auto& entry) { return entry.second.hello.member.name != name; }));
}

bool Observers::has_other(const MemberInfo& info) const {
  return std::ranges::any_of(observers_, [&](const auto& entry) {
    const auto& here = entry.second.hello.member;
    return here.name == info.name && here.incarnation != info.incarnation;
  });
}

void Observers::add(ConnectionId from, const Hello& hello, Time now, ActionQueue& out) {
  const auto same = std::ranges::find_if(
      observers_, [&](const auto& entry) { return entry.second.hello.member.name == hello.member.name; });
  if (same != observers_.end()) drop(same, "has reconnected", out);
  out.say(hello.member.name + " observes the run");
  observers_[from] = {.hello = hello, .heard = now};
}

void Observers::receive(ConnectionId from, const ControlMessage& message, Time now, const Bounds& bounds,
                        const ChainReports& chains, const std::vector<Round>& newest, ActionQueue& out) {
  const auto place = observers_.find(from);
  place->second.heard = now;
  if (const auto problem = problem_of_message(message, bounds); !problem.empty())
    return drop(place, "broke the protocol: " + problem, out);
  if (const auto* leave = std::get_if<Leave>(&message)) return drop(place, "left: " + leave->reason, out);
  const auto* heartbeat = std::get_if<Heartbeat>(&message);
  if (heartbeat == nullptr) return drop(place, "sent a message that observers do not send", out);
  if (const auto conflict = chains.first_other(heartbeat->fragments)) {  // those rounds were undone
    const auto reason = "its chain hash at round " + std::to_string(conflict->round) + " of fragment " +
                        std::to_string(conflict->fragment) + " is not the run's";
    out.send(from, Evicted{reason});
    return drop(place, "must copy the state again: " + reason, out);
  }
  out.send(from, HeartbeatReply{0, heartbeat->number, {}, newest});
}

bool Observers::closed(ConnectionId connection, ActionQueue& out) {
  const auto place = observers_.find(connection);
  if (place == observers_.end()) return false;
  out.say(place->second.hello.member.name + " has stopped observing: its connection closed");
  observers_.erase(place);
  return true;
}

void Observers::drop_silent(Time now, Time patience, ActionQueue& out) {
  const auto silent = std::ranges::find_if(
      observers_, [&](const auto& entry) { return now - entry.second.heard > patience; });
  if (silent != observers_.end()) drop(silent, "is silent for longer than network.detect_timeout", out);
}

void Observers::let_copy(const Admitted& admitted, const Roster& roster, ActionQueue& out) {
  for (auto at = observers_.begin(); at != observers_.end();) {
    const auto place = at++;
    if (place->second.admitted) continue;
    const auto connection = place->first;
    if (const auto verdict = compare_models(place->second.hello, roster);
        verdict.answer != Verdict::Answer::admit) {
      observers_.erase(place);
      refuse(connection, verdict.text, out);
      continue;
    }
    if (admitted.donors.empty()) return;  // it is admitted as soon as there is a donor
    place->second.admitted = true;
    out.send(connection, admitted);
  }
}

void Observers::begin_view(const Settings& settings, ActionQueue& out) {
  for (auto& [connection, observer] : observers_) {
    observer.admitted = false;
    out.send(connection, Steered{settings});
  }
}

void Observers::end(const std::vector<ControlMessage>& messages, ActionQueue& out) {
  for (const auto& [connection, observer] : observers_) {
    for (const auto& message : messages) out.send(connection, message);
    out.close(connection);
  }
}

void Observers::drop(Places::iterator place, const std::string& why, ActionQueue& out) {
  out.say(place->second.hello.member.name + ", an observer, " + why);
  out.close(place->first);
  observers_.erase(place);
}

}  // namespace isthmus::outer_sync::protocol
