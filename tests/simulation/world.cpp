#include "world.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

namespace isthmus::outer_sync::protocol {

using namespace std::chrono_literals;

World::World(std::uint64_t seed, bool tell) : seed_(seed), telling_(tell) {
  members_ = 2 + chance(3);
  lanes_ = 1 + chance(2);
  disturbances_ = chance(14);
  std::vector<Range> fragments;
  std::uint64_t begin = 0;
  for (auto p = 1 + chance(2); p > 0; --p) {
    fragments.push_back({begin, 1 + chance(32)});
    begin = fragments.back().end();
  }
  layout_ = FragmentLayout(std::move(fragments), 16);
  codecs_ = {.codec = {quant::CodecKind::fp32}, .warmup_codec = {quant::CodecKind::fp32}};
  options_ = {.run = "simulated",
              .replicas = members_,
              .reducers = 0,
              .config = {},
              .token = {},
              .join_timeout = 60s,
              .detect_timeout = detect_timeout,
              .least = 1 + chance(2),
              .topology = {},
              .elastic = true,
              .warmup_rounds = 0,
              .last = {},
              .recover = {}};
  constexpr Time latencies[] = {3ms, 30ms, 30ms, 100ms}, delays[] = {60ms, 60ms, 300ms, 1s};
  latency_ = latencies[chance(4)];
  apply_delay_ = delays[chance(4)];
  pace_ = chance(6) == 0 ? 8 : 1;
  in_flight_ = 1 + (chance(3) == 0 ? 1 : 0);
  closing_ = {.least = options_.least, .quorum = 0, .grace = Time(chance(300'000))};
  if (chance(2) == 0) closing_.quorum = 1 + chance(members_);
  options_.leases = closing_.quorum > 0;
  // A view with fewer trainers than the quorum needs all of them.
  if (chance(2) == 0) options_.least = closing_.least = std::max(closing_.least, closing_.quorum);
  if (random_bits(seed_, 3, 0) % 4 == 0) {
    reducer_ = random_bits(seed_, 3, 1) % ++members_;  // anywhere in the order of the sums
    options_.topology.setting = static_cast<Topology>(random_bits(seed_, 3, 2) % topology_names.size());
  }
  // From a separate random stream, so that worlds without it stay the same.
  if (random_bits(seed_, 4, 0) % 4 == 0) closing_.reject = 4;
  if (closing_.reject > 0) sick_ = random_bits(seed_, 4, 1) % members_;
  if (reducer_) options_.reducers = random_bits(seed_, 5, 5) % 2;
  doomed_ = random_bits(seed_, 5, 0) % 32 == 0;
  torn_ = random_bits(seed_, 5, 2) % 8 == 0 && members_ == 2 && !reducer_;
  if (torn_) {
    layout_ = FragmentLayout({{0, 16}, {16, 16}}, 16);  // so that each member owns a fragment
    apply_delay_ = 60ms;
    options_.leases = true;
    closing_.quorum = closing_.least = options_.least = 1;
    closing_.grace /= 16;
    pace_ = 8;
  }
  lonely_ = random_bits(seed_, 5, 1) % 8 == 0;
  const auto trainers = members_ - (reducer_ ? 1 : 0);
  severed_ = random_bits(seed_, 5, 3) % 8 == 0 && members_ >= 3 && trainers > options_.least;
  options_.judge = [](const auto&, const auto&) { return ChangeVerdict{}; };
  if (random_bits(seed_, 6, 0) % 2 == 0) {
    for (auto n = 1 + random_bits(seed_, 6, 1) % 4; n > 0; --n)
      at(500ms + Time(random_bits(seed_, 6, 1 + n) % static_cast<std::uint64_t>(fault_time.count())),
         [this] { steer(); });
  }
  processes_.resize(members_);
  for (NodeId m = 0; m < members_; ++m) processes_[m].id = m;
  for (auto n = chance(2) * chance(6); n > 0; --n) {
    const auto moment = static_cast<Moment>(chance(moments));
    const bool often = moment == Moment::made || moment == Moment::delivered || moment == Moment::applied;
    ambushes_.push_back({moment, chance(often ? 100 : 8), static_cast<Fault>(chance(faults))});
  }
}

std::string World::describe() const {
  return "seed " + std::to_string(seed_) + ": " + std::to_string(members_) + " members" +
         (reducer_ ? ", m" + std::to_string(*reducer_) + " is a reducer" : "") + ", at least " +
         std::to_string(options_.least) + ", quorum " + std::to_string(closing_.quorum) + ", " +
         std::to_string(layout_.fragment_count()) + " fragments in " + std::to_string(layout_.chunk_count()) +
         " chunks, " + std::to_string(lanes_) + " lanes, " +
         (sick_ ? "member " + std::to_string(*sick_) + " sick, " : std::string()) +
         std::to_string(in_flight_) + " rounds in flight, messages take up to " +
         std::to_string(latency_ / 1ms) + " ms, results wait up to " + std::to_string(apply_delay_ / 1ms) +
         " ms, pace " + std::to_string(pace_) + ", " + std::to_string(disturbances_) + " disturbances, " +
         std::to_string(ambushes_.size()) + " ambushes";
}

std::string World::run() {
  start_coordinator(false);
  for (NodeId m = 0; m < members_; ++m) at(some(200ms), [this, m] { start(m); });
  for (std::size_t i = 0; i < disturbances_; ++i) at(300ms + some(fault_time), [this] { disturb(); });
  if (torn_) at(1s + some(fault_time), [this] { tear(); });
  if (lonely_)
    at(1s + some(fault_time), [this] { crash_for(reducer_.value_or(chance(members_)), some(200ms)); });
  if (chance(8) == 0) {  // while the first view forms
    at(50ms + some(400ms), [this] {
      crash_coordinator(false);
      at(some(1s), [this] {
        if (!coordinator_) start_coordinator(disk_was_lost_);
      });
    });
  }
  calm_from_ = 300ms + fault_time + 3s;
  end_ = calm_from_ + calm_time;
  at(calm_from_, [this] { heal(); });
  if (severed_) {
    at(calm_from_ + calm_time / 2 + Time(1), [this] { sever(); });
    end_ += calm_time / 2 + severed_time;
  }
  at(end_, [this] { check_end(); });
  while (!events_.empty() && problem_.empty() && events_.top().time <= end_ + longest_view_change) {
    const auto event = events_.top();
    events_.pop();
    now_ = event.time;
    mix(static_cast<std::uint64_t>(now_.count()));
    mix(event.order);
    event.happen();
    if (over_) break;
  }
  return problem_;
}

void World::at(Time delay, std::function<void()> event) {
  events_.push({now_ + std::max(delay, Time(1)), order_++, std::move(event)});
}

/// Schedules an event of a process: dropped if the process has died meanwhile, delayed while it stands still.
void World::in(Process& process, Time delay, std::function<void()> event) {
  at(delay, [this, &process, life = process.life, event = std::move(event)] {
    if (!process.alive || process.life != life) return;
    if (process.stopped) {
      process.backlog.push_back(event);
    } else {
      event();
    }
  });
}

void World::fail(const std::string& what) {
  if (!problem_.empty()) return;
  problem_ = "at " + std::to_string(now_.count() / 1000) + " ms: " + what;
  tell(what);
}

void World::tell(const std::string& what) {
  if (!telling_) return;
  auto time = std::to_string(now_.count() / 1000);
  time.insert(0, time.size() < 6 ? 6 - time.size() : 0, ' ');
  story_.push_back(time + " ms  " + what);
}

// ---- processes ----

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
  process.member.reset();
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
    process.member.reset();
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
        beat.lost.push_back(id_of(info));
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

void World::on_seal(Process& process, const Seal& seal) {
  if (!process.member) {
    if (process.used && process.id != reducer_)
      return fail("a member that has taken part is asked to begin (I11)");
    process.member = std::make_unique<Member>(layout_, codecs_, closing_,
                                              std::vector<FragmentState>(layout_.fragment_count()));
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
  for (FragmentId p = 0; !joins && p < layout_.fragment_count(); ++p)
    in(process, some(50ms), [this, m = process.id, p] { look_for_results(m, p); });
  ambush(Moment::view_begun, process.id);
}

void World::on_evicted(Process& process) {
  tell("member " + std::to_string(process.id) + " is evicted");
  count("evicted");
  ambush(Moment::evicted, process.id);
  process.member.reset();
  process.in_run = false;
  process.first.clear();
  process.learning = false;
  process.said_ready = false;
  process.learned.clear();
  process.rounds.clear();
  process.rounds.forget_taken();
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

// ---- copying the state from others ----

void World::learn(Process& process, const Admitted& admitted) {
  if (process.in_run || process.learning) return;
  tell("member " + std::to_string(process.id) + " is admitted");
  process.learning = process.used = true;
  process.said_ready = false;
  process.member.reset();
  process.learned.assign(layout_.fragment_count(), std::nullopt);
  process.learned_ledger.assign(layout_.fragment_count(), {});
  process.donors.clear();
  for (const auto& info : admitted.donors) process.donors.push_back(node_of(info));
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) ask_for_state(process, p);
  if (doomed_ && now_ < calm_from_ && coordinator_ && disk_) {
    doomed_ = false;
    at(some(100ms), [this, m = process.id] { lose_the_state(m); });
  }
}

void World::ask_for_state(Process& process, FragmentId p) {
  if (!process.learning || process.in_run) return;
  const auto donor = process.donors.at(chance(process.donors.size()));
  // A restarted member is another replica: it has no state and gives none.
  const bool has_it = processes_[donor].alive && processes_[donor].in_run;
  const bool reachable = has_it && !cut(process.id, donor) && !cut(donor, process.id);
  if (!reachable || donor == process.id) {
    // After a while the list of donors is out of date: ask the coordinator for a new one.
    if (chance(8) == 0) return on_evicted(process);
    in(process, redial_after, [this, &process, p] { ask_for_state(process, p); });
    return;
  }
  const auto link = process.sources[p] = connect(donor, process.id);
  transmit(link, process.id, [this, donor, m = process.id, p, link] { give_state(donor, m, p, link); });
}

/// The donor may lag, while others have the missing rounds.
void World::ask_others_for_state(Process& process) {
  if (!process.learning || process.said_ready || chance(10) != 0) return;
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    if (!process.learning) return;
    const auto& learned = process.learned.at(p);
    if (learned && p < process.newest.size() && learned->round + 1 < process.newest[p])
      ask_for_state(process, p);
  }
}

void World::give_state(NodeId donor, NodeId m, FragmentId p, const LinkPtr& link) {
  auto& process = processes_[donor];
  if (!process.member || !process.in_run) return break_link(link);
  process.followers.emplace_back(m, p, link);
  transmit(link, donor,
           [this, m, p, state = process.member->fragments()[p], ledger = process.member->ledger()[p], link] {
             if (processes_[m].sources[p] == link) handle_state(m, p, state, ledger);
           });
}

void World::forward(Process& donor, FragmentId p, const FragmentState& state) {
  for (const auto& [m, fragment, link] : donor.followers) {
    if (fragment != p) continue;
    transmit(link, donor.id, [this, to = m, p, state, link = link] {
      if (processes_[to].sources[p] == link) handle_state(to, p, state, std::nullopt);
    });
  }
}

void World::handle_state(NodeId m, FragmentId p, const FragmentState& state,
                         const std::optional<FragmentLedger>& snapshot) {
  auto& process = processes_[m];
  if (!process.learning || process.in_run) return;
  if (process.member) {
    if (process.member->sealed() > 0) return;  // the round may belong to the view that this member enters
    if (state.round == process.member->fragments()[p].round + 1)
      process.member->applied(p, state.round, state.chain);
    return;
  }
  auto& place = process.learned.at(p);
  if (snapshot) {
    place = state;
    process.learned_ledger[p] = *snapshot;
    count("fragment taken from a donor");
  } else if (place && state.round == place->round + 1) {
    place = state;
    process.learned_ledger[p].skip();
    count("round followed");
  }
  be_ready(process);
}

void World::be_ready(Process& process) {
  if (!process.learning || process.said_ready || process.in_run) return;
  if (process.learned.size() != layout_.fragment_count()) return;
  std::vector<FragmentState> fragments;
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    if (!process.learned[p]) return;
    if (p < process.newest.size() && process.learned[p]->round + 1 < process.newest[p]) return;
    fragments.push_back(*process.learned[p]);
  }
  tell("member " + std::to_string(process.id) + " has the state");
  process.said_ready = true;
  process.member = std::make_unique<Member>(layout_, codecs_, closing_, std::move(fragments),
                                            process.learned_ledger, process.learned_settings);
  forget_samples(process);
  send_control(process, Ready{});
  ambush(Moment::ready, process.id);
}

}  // namespace isthmus::outer_sync::protocol
