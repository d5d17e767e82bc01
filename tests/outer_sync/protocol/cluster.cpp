#include "cluster.h"

#include <algorithm>

namespace isthmus::outer_sync::protocol {

Cluster::Cluster(const std::vector<std::string>& names, std::size_t least, ClosingRule closing,
                 const std::vector<std::string>& reducers, InitialState initial)
    : closing_(closing), initial_(std::move(initial)) {
  if (initial_.fragments.empty()) initial_.fragments.resize(1);
  closing_.least = least;
  options_ = {.run = "run-1",
              .replicas = names.size(),
              .config = {},
              .token = {},
              .join_timeout = 60s,
              .detect_timeout = detect_timeout,
              .least = least,
              .topology = {},
              .leases = closing.quorum > 0,
              .last = {},
              .recover = {}};
  options_.token.bytes.fill(9);
  coordinator_ = std::make_unique<Coordinator>(options_, now_);
  for (const auto& name : reducers) start_reducer(name);
  for (const auto& name : names) start(name);
  EXPECT_EQ(view().size(), names.size() + reducers.size())
      << "the first view must begin when all are present";
}

std::vector<std::string> Cluster::view() const {
  std::vector<std::string> names;
  if (!coordinator_ || coordinator_->participating() == 0) return names;
  for (const auto& [name, member] : coordinator_->members()) {
    if (member.role == Coordinator::Role::member) names.push_back(name);
  }
  return names;
}

bool Cluster::was_said(const std::string& part) const {
  return std::ranges::any_of(said_, [&](const auto& line) { return line.find(part) != std::string::npos; });
}

// ---- training ----

void Cluster::contribute(const std::vector<std::string>& names) {
  for (const auto& name : names) {
    auto& replica = at(name);
    const auto round = round_of(name) + 1;
    if (replica.pending.empty()) draw(name);
    auto& samples = replica.handed_in[round] = std::exchange(replica.pending, {});
    for (ChunkId k = 0; k < layout_.chunk_count(); ++k) {
      Hasher hasher;
      const auto digest = hasher.update(name).update(round).update(std::uint64_t{k}).finish();
      auto bytes = std::make_shared<Bytes>(4 * layout_.chunk(k).size);
      for (std::size_t i = 0; i < bytes->size(); ++i) (*bytes)[i] = std::byte{digest.bytes.at(i % 32)};
      replica.member->contribute(k, round, bytes, 100, 0, k == 0 ? samples : SampleSet());
    }
  }
  settle();
}

SampleRange Cluster::draw(const std::string& name, std::uint64_t most) {
  auto& replica = at(name);
  const auto range = replica.order.next(most);
  replica.pending.add(range);
  return range;
}

void Cluster::train(int times) {
  for (int i = 0; i < times; ++i) {
    std::vector<std::string> names;
    for (const auto& [name, replica] : replicas_) {
      if (replica.takes_part && trains(replica.info)) names.push_back(name);
    }
    contribute(names);
  }
}

void Cluster::apply(const std::string& name) {
  auto& replica = at(name);
  for (;;) {
    const auto& last = replica.member->fragments()[0];
    const auto next = replica.rounds.find(last.round + 1);
    if (next == replica.rounds.end()) return;
    Hasher hasher;
    hasher.update(std::as_bytes(std::span(last.chain.bytes)));
    for (const auto& bytes : next->second.results) hasher.update(std::span(*bytes));
    const auto own = replica.handed_in.extract(next->first);
    const bool left_out = std::ranges::count(next->second.included, false) > 0;
    if (own && left_out) replica.pending.add(own.mapped());
    replica.member->applied(0, next->first, hasher.finish(), next->second.samples);
  }
}

/// Bytes that only these contributions produce.
SharedBytes Cluster::mean_of(const Reduce& job) {
  Hasher hasher;
  for (const auto& bytes : job.contributions) hasher.update(std::span(*bytes));
  const auto digest = hasher.finish();
  auto mean = std::make_shared<Bytes>(job.contributions.front()->size());
  for (std::size_t i = 0; i < mean->size(); ++i) (*mean)[i] = std::byte{digest.bytes.at(i % 32)};
  return mean;
}

// ---- what happens to them ----

void Cluster::isolate(const std::string& name) {
  for (const auto& [other, replica] : replicas_) {
    cut(name, other);
    cut(other, name);
  }
  cut(name, "coordinator");
  cut("coordinator", name);
}

void Cluster::heal() {
  cuts_.clear();
  for (auto& [name, replica] : replicas_) {
    if (!replica.takes_part || !replica.member) continue;
    for (MemberIndex peer = 0; peer < replica.member->view().members.size(); ++peer) {
      if (peer != replica.member->self())
        replica.member->repeat_to(peer, [](const ChunkKey&) { return true; });
    }
  }
  settle();
}

void Cluster::kill(const std::string& name) {
  auto& replica = at(name);
  const auto info = replica.info;
  const auto connection = replica.connection;
  replica = {};
  replica.info = info;
  if (coordinator_ && connection != 0) coordinator_->closed(connection);
  settle();
}

void Cluster::start(const std::string& name) {
  auto& replica = replicas_[name];
  const auto incarnation = replica.info.incarnation + 1;
  const auto kind = replica.info.kind;
  replica = {};
  replica.info = {name, incarnation, name + ":7000", 0, kind};
  dial(replica);
}

void Cluster::start_reducer(const std::string& name) {
  replicas_[name].info.kind = MemberKind::reducer;
  start(name);
}

void Cluster::reconnect(const std::string& name) { dial(at(name)); }

void Cluster::dial(Replica& replica) {
  replica.connection = next_connection_++;
  Hello hello;
  hello.run = options_.run;
  hello.member = replica.info;
  if (replica.takes_part) {
    hello.sealed = replica.member->sealed();
    hello.activated = replica.member->view().number;
    hello.token = replica.token;
    hello.done = replica.done;
  }
  say(replica.info.name, hello);
}

void Cluster::learn(const std::string& name, const std::string& donor) {
  auto& replica = at(name);
  ASSERT_TRUE(replica.admitted) << name << " was not admitted, so it knows no donor";
  replica.member = std::make_unique<Member>(layout_, codecs_, closing_, at(donor).member->fragments());
  replica.order.forget();
  replica.pending = {};
  replica.handed_in.clear();
  say(name, Ready{});
}

void Cluster::say(const std::string& name, const ControlMessage& message) {
  if (coordinator_ && !is_cut(name, "coordinator")) coordinator_->receive(at(name).connection, now_, message);
  settle();
}

void Cluster::start_coordinator(std::optional<ViewNumber> recover) {
  auto options = options_;
  (recover ? options.before : options.last) = disk;
  options.recover = recover;
  options.given_up = given_up;
  coordinator_ = std::make_unique<Coordinator>(options, now_);
  for (auto& [name, replica] : replicas_) {
    if (replica.connection != 0) dial(replica);
  }
}

void Cluster::pass(Time time) {
  constexpr Time step = 100ms;
  for (const auto end = now_ + time; now_ < end;) {
    now_ += step;
    for (auto& [name, replica] : replicas_) {
      if (replica.member) replica.member->tick(now_);
      if (replica.connection == 0) continue;
      Heartbeat beat;
      beat.number = static_cast<std::uint64_t>(now_.count());
      if (replica.takes_part) {
        beat.view = replica.member->view().number;
        for (const auto& fragment : replica.member->fragments())
          beat.fragments.emplace_back(fragment.round, 0);
      }
      say(name, beat);
    }
    if (coordinator_) coordinator_->tick(now_);
    settle();
  }
}

void Cluster::settle() {
  for (bool busy = true; busy;) {
    busy = act_coordinator();
    for (auto& [name, replica] : replicas_) busy = act(replica) || busy;
  }
}

// ---- messages ----

bool Cluster::act_coordinator() {
  if (!coordinator_) return false;
  const auto actions = coordinator_->take_actions();
  for (const auto& action : actions) {
    if (const auto* store = std::get_if<Store>(&action)) {
      disk = store->view;
      said_.push_back(store->line);
    }
    if (const auto* line = std::get_if<Say>(&action)) said_.push_back(line->text);
    if (const auto* end = std::get_if<Ended>(&action)) ended = *end;
    const auto* send = std::get_if<SendControl>(&action);
    if (send == nullptr) continue;
    for (auto& [name, replica] : replicas_) {
      if (replica.connection != send->to || is_cut("coordinator", name) || lost(name, send->message))
        continue;
      handle(replica, send->message);
    }
  }
  return !actions.empty();
}

/// A trainer applies the results of its checkpoint without a delivery.
void Cluster::set_up(Replica& replica) {
  const bool reduces = !trains(replica.info);
  const InitialState none{.fragments = std::vector<FragmentState>(1)};
  const auto& from = reduces ? none : initial_;
  replica.member = std::make_unique<Member>(layout_, codecs_, closing_, from.fragments, from.ledger);
  for (const auto& round : from.decided) {
    replica.member->keep_restored(round);
    replica.rounds[round.round] = {.fragment = round.fragment,
                                   .round = round.round,
                                   .results = round.results,
                                   .included = std::vector<bool>(round.results.size(), true),
                                   .rejected = {},
                                   .samples = round.samples};
  }
}

void Cluster::handle(Replica& replica, const ControlMessage& message) {
  const auto& name = replica.info.name;
  if (const auto* seal = std::get_if<Seal>(&message)) {
    ++replica.seals;
    if (!replica.member) set_up(replica);
    auto sealed = replica.member->seal(seal->view);
    if (sealed) replica.order.seal(*sealed);
    if (sealed && coordinator_ && !is_cut(name, "coordinator"))
      coordinator_->receive(replica.connection, now_, *sealed);
  } else if (const auto* view = std::get_if<NewView>(&message)) {
    begin(replica, *view);
  } else if (const auto* reply = std::get_if<HeartbeatReply>(&message)) {
    if (!replica.takes_part || reply->view != replica.member->view().number) return;
    replica.member->lease_until(Time(reply->number + reply->lease));
    replica.member->lowest_applied(reply->lowest);
  } else if (std::holds_alternative<Admitted>(message)) {
    replica.admitted = true;
  } else if (const auto* evicted = std::get_if<Evicted>(&message)) {
    replica.evicted = evicted->reason;
    replica.takes_part = false;
    replica.member.reset();
    replica.connection = 0;
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    replica.refused = refused->reason;
    replica.connection = 0;
  }
}

void Cluster::begin(Replica& replica, const NewView& message) {
  const auto& members = message.view.members;
  const auto me = std::ranges::find(members, replica.info.name, &MemberInfo::name);
  ASSERT_NE(me, members.end()) << "a view came to " << replica.info.name << ", which is not a member of it";
  const auto self = static_cast<MemberIndex>(me - members.begin());
  ASSERT_TRUE(replica.member->fits(message, self));
  replica.token = message.token;
  switch (replica.member->activate(message, self)) {
    case Member::Entry::begun:
      for (const auto& [fragment, round] : replica.member->take_retracted())
        EXPECT_EQ(replica.rounds.erase(round), 1U) << "a retracted round must have been delivered";
      replica.takes_part = true;
      if (trains(replica.info)) replica.order.deal(message, self);
      return;
    case Member::Entry::evicted:
      replica.takes_part = false;
      coordinator_->receive(replica.connection, now_, Evicted{"its rounds are not the run's"});
      return;
    case Member::Entry::ignored:
      return;
  }
}

bool Cluster::act(Replica& replica) {
  return replica.member &&
         carry_out_actions(*replica.member, [&](auto& action) { carry_out(replica, action); });
}

void Cluster::carry_out(Replica& replica, const SendChunk& chunk) {
  send(replica, chunk.peer, [&](Member& peer, MemberIndex from) {
    const auto refused = peer.receive(from, chunk.message);
    EXPECT_FALSE(refused) << *refused;
  });
}

void Cluster::carry_out(Replica& replica, const SendAck& ack) {
  send(replica, ack.peer,
       [&](Member& peer, MemberIndex from) { peer.acknowledged(from, ack.view, ack.key); });
}

void Cluster::carry_out(Replica& replica, const SendBegun& begun) {
  send(replica, begun.peer, [&](Member& peer, MemberIndex from) { peer.peer_begun(from, begun.view); });
}

void Cluster::carry_out(Replica& replica, const Reduce& job) {
  Measured measured;
  if (closing_.reject > 0) {
    measured.squares.resize(job.contributions.size());
    measured.dots.resize(job.contributions.size());
  }
  replica.member->reduced(job.view, job.chunk, job.round, mean_of(job), measured);
}

void Cluster::carry_out(Replica& replica, Deliver& round) {
  replica.rounds[round.round] = std::move(round);
  if (replica.applies) apply(replica.info.name);
}

void Cluster::send(Replica& from, MemberIndex peer, const std::function<void(Member&, MemberIndex)>& arrive) {
  const auto& info = from.member->view().members.at(peer);
  auto& to = at(info.name);
  if (!to.takes_part || !to.member || to.info.incarnation != info.incarnation) return;
  if (is_cut(from.info.name, info.name)) return;
  const auto& members = to.member->view().members;
  for (std::size_t m = 0; m < members.size(); ++m) {
    if (id_of(members[m]) == id_of(from.info)) arrive(*to.member, static_cast<MemberIndex>(m));
  }
}

void expect_equal(Cluster& cluster, const std::vector<std::string>& names, Round round) {
  for (const auto& name : names) {
    EXPECT_EQ(cluster.round_of(name), round) << name;
    EXPECT_EQ(cluster.chain_of(name), cluster.chain_of(names.front())) << name << " has a different history";
  }
}

}  // namespace isthmus::outer_sync::protocol
