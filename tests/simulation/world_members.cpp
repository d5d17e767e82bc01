// Members of a world: their starts and crashes, and what they exchange with the coordinator.

#include "world.h"

#include <algorithm>
#include <utility>

namespace isthmus::outer_sync::protocol {

using namespace std::chrono_literals;

void World::start(NodeId m) {
  auto& process = processes_[m];
  if (process.alive) return;
  const auto id = process.id;
  const auto incarnation = process.incarnation + 1;
  const auto life = process.life + 1;
  process = {};
  process.id = id;
  process.incarnation = incarnation;
  process.life = life;
  process.alive = true;
  process.patience = static_cast<int>(1 + chance(2) * chance(3));
  process.contributed.assign(layout_.fragment_count(), 0);
  forget_samples(process);
  process.sources.resize(layout_.fragment_count());
  tell("member " + std::to_string(m) + " starts");
  dial_coordinator(m);
  in(process, some(heartbeat), [this, m] { beat(m); });
  in(process, some(tick_every), [this, m] { tick(m); });
  if (incarnation > 1) return;
  for (NodeId other = 0; other < m; ++other) {
    for (std::size_t l = 0; l < lanes_; ++l)
      at(some(redial_after), [this, other, m, l] { dial_peer(other, m, l); });
  }
  for (NodeId other = m + 1; other < members_; ++other) {
    if (processes_[other].incarnation == 0) continue;
    for (std::size_t l = 0; l < lanes_; ++l)
      at(some(redial_after), [this, m, other, l] { dial_peer(m, other, l); });
  }
}

void World::crash(NodeId m) {
  auto& process = processes_[m];
  tell("member " + std::to_string(m) + " crashes");
  count("member crash");
  process.alive = false;
  if (process.in_run) dead_.insert(process.replica);
  ++process.life;
  process.backlog.clear();
  for (const auto& weak : std::vector(links_)) {
    const auto link = weak.lock();
    if (link && (link->a == m || link->b == m)) break_link(link);
  }
  process.forget_member();
}

void World::start_again(Process& process) {
  const auto m = process.id;
  crash(m);
  at(some(20ms), [this, m] { start(m); });
}

World::NodeId World::node_of(const MemberInfo& info) const { return std::stoul(info.name.substr(1)); }

MemberInfo World::info_of(const Process& process) const {
  return {"m" + std::to_string(process.id), process.incarnation, "m" + std::to_string(process.id) + ":1",
          process.in_run ? process.member->view().members[process.member->self()].slot : std::uint16_t{0},
          process.id == reducer_ ? MemberKind::reducer : MemberKind::trainer};
}

void World::say_hello(Process& process) {
  Hello hello;
  hello.run = options_.run;
  hello.fresh = process.id == reducer_ ? !process.in_run : !process.used;
  hello.member = info_of(process);
  process.replica = id_of(hello.member);
  node_of_[process.replica] = process.id;
  if (process.member && process.in_run) {
    hello.sealed = process.member->sealed();
    hello.activated = process.member->view().number;
    hello.token = process.token;
    hello.settings = process.member->settings();
  }
  if (!process.in_run) {  // the state learned so far came from the donors of the old admission
    process.learning = false;
    process.forget_member();
    process.said_ready = false;
    process.learned.clear();
  }
  send_control(process, hello);
  ambush(Moment::hello, process.id);
}

void World::send_control(Process& process, ControlMessage message) {
  transmit(process.control, process.id,
           [this, id = process.connection, life = coordinator_life_, message = std::move(message)] {
             if (!coordinator_ || life != coordinator_life_) return;
             coordinator_->receive(id, now_, message);
             act_coordinator();
           });
}

void World::beat(NodeId m) {
  auto& process = processes_[m];
  in(process, heartbeat, [this, m] { beat(m); });
  if (!process.control) return;
  if (now_ - process.heard > process.patience * detect_timeout + 2 * heartbeat) {
    tell("member " + std::to_string(m) + " receives nothing from the coordinator");
    count("silent coordinator noticed");
    const auto link = process.control;
    break_link(link);
    closed(link, m);
    return;
  }
  Heartbeat beat;
  beat.number = ++process.beats;
  process.beat_times[beat.number] = now_;
  if (process.member && process.in_run) {
    beat.view = process.member->view().number;
    beat.relays = process.relays.number;
    for (const auto& state : process.member->fragments())
      beat.fragments.emplace_back(state.round, prefix_of(state.chain));
    for (const auto& info : process.member->view().members) {
      const auto other = node_of(info);
      if (other == m) continue;
      const bool direct = connected(m, other);
      if (!direct && relay_told(m, m, other)) beat.relayed.push_back(id_of(info));
      if (direct || way_is_open(m, other)) {
        process.down_since.erase(other);
      } else if (now_ - process.down_since.try_emplace(other, now_).first->second >
                 process.patience * detect_timeout) {
        beat.unreachable.push_back(id_of(info));
      }
    }
  }
  send_control(process, beat);
}

void World::tick(NodeId m) {
  auto& process = processes_[m];
  in(process, tick_every, [this, m] { tick(m); });
  if (!process.member) return;
  process.member->tick(now_);
  act(m);
  check(process);
}

void World::on_control(NodeId m, const ControlMessage& message) {
  auto& process = processes_[m];
  process.heard = now_;
  if (const auto* seal = std::get_if<Seal>(&message)) {
    on_seal(process, *seal);
  } else if (const auto* view = std::get_if<NewView>(&message)) {
    process.waiting_view = *view;
    try_view(process);
  } else if (const auto* reply = std::get_if<HeartbeatReply>(&message)) {
    const auto sent = process.beat_times.find(reply->number);
    if (sent == process.beat_times.end()) return;
    if (process.member && process.in_run && reply->view == process.member->view().number) {
      process.member->lease_until(sent->second + Time(reply->lease));
      process.member->lowest_applied(reply->lowest);
    }
    process.beat_times.erase(process.beat_times.begin(), std::next(sent));
    process.newest = reply->newest;
    be_ready(process);
    ask_others_for_state(process);
  } else if (const auto* relays = std::get_if<Relays>(&message)) {
    on_relays(m, *relays);
  } else if (const auto* admitted = std::get_if<Admitted>(&message)) {
    process.learned_settings = admitted->settings;
    learn(process, *admitted);
  } else if (const auto* steered = std::get_if<protocol::Steered>(&message)) {
    process.learned_settings = steered->settings;
  } else if (std::holds_alternative<Evicted>(message)) {
    on_evicted(process);
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    obey(process, *refused);
  } else if (std::holds_alternative<Suspended>(message)) {
    count("suspended");
  }
}

/// A trainer applies the results of its checkpoint without a delivery.
void World::set_up(Process& process) {
  const InitialState none{.fragments = std::vector<FragmentState>(layout_.fragment_count())};
  const auto& from = process.id == reducer_ ? none : initial_;
  process.member = std::make_unique<Member>(layout_, codecs_, closing_, from.fragments, from.ledger);
  for (const auto& round : from.decided) {
    process.member->keep_restored(round);
    process.contributed[round.fragment] = round.round;
    process.restored[{round.fragment, round.round}] = {.fragment = round.fragment,
                                                       .round = round.round,
                                                       .results = round.results,
                                                       .included = {},
                                                       .rejected = {},
                                                       .samples = {}};
  }
}

void World::on_seal(Process& process, const Seal& seal) {
  if (!process.member) {
    if (process.used && process.id != reducer_)
      return fail("a member that has taken part is asked to begin (I11)");
    set_up(process);
  }
  const bool was_in_view = process.member->in_view();
  auto sealed = process.member->seal(seal.view);
  if (!sealed) return;
  if (was_in_view) check_forgotten(process, *sealed);
  process.order.seal(*sealed);
  sealed->reach = reach_of(process);
  tell("member " + std::to_string(process.id) + " seals view " + std::to_string(seal.view));
  process.answer = *sealed;
  answers_.insert_or_assign(process.id, Answer{*sealed, process.first, false});
  send_control(process, std::move(*sealed));
  ambush(Moment::sealed, process.id);
}

/// A dropped round must not be on its way into the parameters.
void World::try_view(Process& process) {
  if (!process.waiting_view || !process.member) return;
  const auto& members = process.waiting_view->view.members;
  const auto me =
      std::ranges::find_if(members, [&](const MemberInfo& info) { return id_of(info) == process.replica; });
  if (me == members.end()) return fail("a view was sent to a replica that is not a member of it (I11)");
  const auto self = static_cast<MemberIndex>(me - members.begin());
  if (!process.member->fits(*process.waiting_view, self)) return fail("a view does not fit (I11)");
  const bool of_reference = process.member->is_of_reference(*process.waiting_view, self);
  if (!process.rounds.may_begin_view(of_reference)) return;
  const auto message = *std::exchange(process.waiting_view, std::nullopt);
  const auto settings_before = process.member->settings();
  const auto before = process.member->view().number;
  check_holdings(process, message, self);
  switch (process.member->activate(message, self)) {
    case Member::Entry::ignored:
      return count("view ignored");
    case Member::Entry::evicted:
      count("evicted by its own chain");
      send_control(process, Evicted{"another history"});
      on_evicted(process);
      return check_left(message);
    case Member::Entry::begun:
      return view_begun(process, message, self, before, settings_before, of_reference);
  }
}

/// `before`: the number of the view that this member was in, and `settings_before` its settings.
void World::view_begun(Process& process, const NewView& message, MemberIndex self, ViewNumber before,
                       const Settings& settings_before, bool of_reference) {
  tell("member " + std::to_string(process.id) + " begins view " + std::to_string(message.view.number) +
       " in slot " + std::to_string(message.view.members[self].slot) + " with " +
       std::to_string(message.view.members.size()) + " members");
  if (codecs_.exchanges) {
    if (!process.exchanges) process.exchanges = std::make_unique<Exchanges>(layout_, codecs_);
    process.exchanges->begin_view(process.member->view(), self);
    process.exchanging.assign(layout_.fragment_count(), 0);
  }
  if (process.member->view().number <= before) fail("a view number fell (I8)");
  if (process.member->view().number < process.member->sealed())
    fail("a view begins after a higher one was sealed (I8)");
  newest_begun_ = std::max(newest_begun_, process.member->view().number);
  const auto retracted = process.member->take_retracted();
  for (std::size_t i = 0; i < retracted.size(); ++i) count("round withdrawn");
  if (!of_reference && !process.rounds.withdraw(retracted))
    fail("a round is withdrawn that was not delivered, or one stays (I11)");
  if (before != message.reference) count(process.in_run ? "came back" : "joined");
  if (process.id == reducer_) count("view with a reducer");
  const bool joins = !process.in_run;
  const bool anew = process.id == reducer_ && before != message.reference;
  if (joins || anew) {  // it keeps no results of earlier rounds
    process.first.clear();
    for (const auto& state : process.member->fragments()) process.first.push_back(state.round);
  }
  if (!joins && has_gone_on_otherwise(process, settings_before)) {
    count("gave up for other settings");
    send_control(process, Evicted{"other settings"});
    return on_evicted(process);
  }
  process.in_run = process.used = true;
  if (process.id != reducer_) process.order.deal(message, self);
  process.taken = message.taken;
  process.decided.assign(layout_.fragment_count(), 0);
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p)
    process.decided[p] = message.chains[p].back().round;
  for (const auto& fixed : message.fixed)
    process.decided[fixed.fragment] = std::max(process.decided[fixed.fragment], fixed.round);
  process.learning = false;
  process.token = message.token;
  check_chain(process);
  act(process.id);
  for (FragmentId p = 0; joins && p < layout_.fragment_count(); ++p)
    in(process, some(50ms), [this, m = process.id, p] { train(m, p); });
  for (FragmentId p = 0; (!joins || !process.restored.empty()) && p < layout_.fragment_count(); ++p)
    in(process, (late_ == process.id ? 3s : 0s) + some(joins ? apply_delay_ : 50ms),
       [this, m = process.id, p] { look_for_results(m, p); });
  if (late_ == process.id && now_ + 2s < calm_from_) {
    count("cut off before it applied a round of its checkpoint");
    cut_off({*std::exchange(late_, std::nullopt)}, 2s);
  }
  ambush(Moment::view_begun, process.id);
}

void World::on_evicted(Process& process) {
  tell("member " + std::to_string(process.id) + " is evicted");
  count("evicted");
  ambush(Moment::evicted, process.id);
  process.forget_member();
  process.in_run = false;
  process.first.clear();
  process.learning = false;
  process.said_ready = false;
  process.learned.clear();
  process.rounds.clear();
  process.rounds.forget_taken();
  process.restored.clear();
  process.waiting_view.reset();
  process.applying.reset();
  process.contributed.assign(layout_.fragment_count(), 0);
  process.sent_under.clear();
  ++process.incarnation;
  for (auto& link : process.sources) break_link(link);
  for (auto& [follower, p, link] : process.followers) break_link(link);
  process.followers.clear();
  const auto link = process.control;
  process.control = nullptr;
  break_link(link);
  in(process, some(redial_after), [this, m = process.id] { dial_coordinator(m); });
}

}  // namespace isthmus::outer_sync::protocol
