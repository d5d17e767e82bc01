#include "simulation.h"

#include <algorithm>

namespace isthmus::outer_sync::protocol {
namespace {

constexpr std::uint64_t longest_delay = 40;

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace

Simulation::Simulation(std::uint64_t seed) : seed_(seed) {
  members_ = 2 + chance(4);
  lanes_ = 1 + chance(3);
  rounds_ = 3 + chance(6);
  disturbances_ = chance(60);
  std::vector<Range> fragments;
  std::uint64_t begin = 0;
  for (auto p = 1 + chance(4); p > 0; --p) {
    fragments.push_back({begin + chance(3), 1 + chance(60)});
    begin = fragments.back().end();
  }
  layout_ = FragmentLayout(std::move(fragments), 16);
  codecs_ = {.codec = {quant::CodecKind::fp32},
             .warmup_codec = {quant::CodecKind::bf16},
             .warmup_rounds = chance(3)};

  View view{.number = 1 + chance(5), .members = {}, .owners = {}};
  for (std::size_t m = 0; m < members_; ++m) view.members.push_back({std::to_string(m), 1, ""});
  for (ChunkId k = 0; k < layout_.chunk_count(); ++k)
    view.owners.push_back(static_cast<MemberIndex>(chance(members_)));
  if (chance(2) == 0) view.owners = balanced_owners(layout_, members_);
  owners_ = view.owners;
  for (MemberIndex m = 0; m < members_; ++m) {
    auto& replica = replicas_.emplace_back();
    replica.sent.assign(layout_.fragment_count(), 0);
    replica.applied = replica.sent;
    replica.member = std::make_unique<Member>(layout_, codecs_, replica.applied);
    replica.member->activate(view, m);
    replica.reducer = std::make_unique<Reducer>(layout_, codecs_);
  }
}

std::string Simulation::describe() const {
  return "seed " + std::to_string(seed_) + ": " + std::to_string(members_) + " members, " +
         std::to_string(lanes_) + " lanes, " + std::to_string(rounds_) + " rounds of " +
         std::to_string(layout_.fragment_count()) + " fragments in " + std::to_string(layout_.chunk_count()) +
         " chunks, " + std::to_string(disturbances_) + " disturbances";
}

std::string Simulation::run() {
  for (MemberIndex a = 0; a < members_; ++a) {
    for (MemberIndex b = a + 1; b < members_; ++b) {
      for (std::size_t l = 0; l < lanes_; ++l)
        at(chance(longest_delay), [this, a, b, l] { connect(a, b, l); });
    }
  }
  for (MemberIndex m = 0; m < members_; ++m) {
    for (FragmentId p = 0; p < layout_.fragment_count(); ++p)
      at(chance(longest_delay), [this, m, p] { train(m, p); });
  }
  for (std::size_t i = 0; i < disturbances_; ++i) at(chance(1000), [this] { disturb(); });
  while (!events_.empty() && problem_.empty()) {
    const auto event = events_.top();
    events_.pop();
    now_ = event.time;
    event.happen();
    check_memory();
  }
  if (problem_.empty()) check_end();
  return problem_;
}

void Simulation::at(std::uint64_t delay, std::function<void()> event) {
  events_.push({now_ + delay, order_++, std::move(event)});
}

void Simulation::fail(const std::string& what) {
  if (problem_.empty()) problem_ = "at time " + std::to_string(now_) + ": " + what;
}

// ---- what replicas do ----

std::vector<float> Simulation::values(MemberIndex m, ChunkId chunk, Round round) const {
  std::vector<float> out(layout_.chunk(chunk).size);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] =
        random_unit(seed_ + 1, (std::uint64_t{m} << 40) | (std::uint64_t{chunk} << 20) | i, round) - 0.5F;
  return out;
}

SharedBytes Simulation::contribution(MemberIndex m, ChunkId chunk, Round round) {
  const auto x = values(m, chunk, round);
  Bytes bytes(quant::encoded_size(codecs_.of(round), x.size()));
  if (quant::encode(codecs_.of(round), x, {}, {}, bytes)) fail("a contribution does not encode");
  auto shared = std::make_shared<const Bytes>(std::move(bytes));
  made_.push_back(shared);
  return shared;
}

/// The mean in member order, by a plain loop over fp32 values.
Bytes Simulation::expected(ChunkId chunk, Round round) const {
  std::vector<float> mean(layout_.chunk(chunk).size, 0.0F);
  for (MemberIndex m = 0; m < members_; ++m) {
    const auto x = values(m, chunk, round);
    for (std::size_t i = 0; i < x.size(); ++i) mean[i] += x[i];
  }
  for (auto& x : mean) x /= static_cast<float>(members_);
  return bytes_of(mean);
}

void Simulation::train(MemberIndex m, FragmentId p) {
  auto& replica = replicas_[m];
  const auto round = ++replica.sent[p];
  const auto chunks = layout_.chunks_of(p);
  for (auto k = chunks.first; k < chunks.last; ++k)
    replica.member->contribute(k, round, contribution(m, k, round));
  act(m);
}

void Simulation::reduce(MemberIndex m, const Reduce& job) {
  auto& replica = replicas_[m];
  if (owners_[job.chunk] != m) fail("a chunk is reduced by somebody who does not own it");
  if (++replica.reductions[{job.chunk, job.round}] > 1) fail("a chunk is reduced twice in one round");
  const std::vector<std::uint64_t> equal(job.contributions.size(), 1);
  auto bytes = replica.reducer->reduce(job.chunk, job.round, job.contributions, equal);
  made_.push_back(bytes);
  at(chance(longest_delay), [this, m, chunk = job.chunk, round = job.round, bytes] {
    replicas_[m].member->reduced(chunk, round, bytes);
    act(m);
  });
}

void Simulation::deliver(MemberIndex m, const Deliver& round) {
  const auto where = "round " + std::to_string(round.round) + " of fragment " +
                     std::to_string(round.fragment) + " at member " + std::to_string(m);
  auto& replica = replicas_[m];
  if (round.round != replica.applied[round.fragment] + 1) return fail(where + " comes twice or out of order");
  auto& [results, times] = delivered_[{round.fragment, round.round}];
  if (++times == 1) {
    for (const auto& bytes : round.results) results.push_back(std::make_shared<const Bytes>(*bytes));
  }
  const auto first = layout_.chunks_of(round.fragment).first;
  if (results.size() != round.results.size()) return fail(where + " has not all chunks");
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (*results[i] != *round.results[i]) return fail(where + ": the members got different bytes");
    if (round.round > codecs_.warmup_rounds &&
        *results[i] != expected(static_cast<ChunkId>(first + i), round.round))
      return fail(where + ": not the mean in member order");
  }
  replica.applied[round.fragment] = round.round;
  at(chance(3 * longest_delay), [this, m, p = round.fragment, r = round.round] {
    replicas_[m].member->applied(p, r);
    if (r < rounds_) at(chance(3 * longest_delay), [this, m, p] { train(m, p); });
  });
}

void Simulation::act(MemberIndex m) {
  for (auto& action : replicas_[m].member->take_actions()) {
    if (const auto* send = std::get_if<SendChunk>(&action)) {
      carry(m, send->peer, send->message.key.chunk, [this, m, to = send->peer, message = send->message] {
        if (const auto refused = replicas_[to].member->receive(m, message)) fail("refused: " + *refused);
        act(to);
      });
    } else if (const auto* ack = std::get_if<SendAck>(&action)) {
      carry(m, ack->peer, ack->key.chunk,
            [this, m, ack = *ack] { replicas_[ack.peer].member->acknowledged(m, ack.view, ack.key); });
    } else if (const auto* job = std::get_if<Reduce>(&action)) {
      reduce(m, *job);
    } else if (const auto* round = std::get_if<Deliver>(&action)) {
      deliver(m, *round);
    }
  }
}

// ---- what the network does ----

Simulation::Lane& Simulation::lane(MemberIndex a, MemberIndex b, ChunkId chunk) {
  return links_[{std::min(a, b), std::max(a, b), chunk % lanes_}];
}

void Simulation::carry(MemberIndex from, MemberIndex to, ChunkId chunk, const std::function<void()>& arrive) {
  const auto& via = lane(from, to, chunk);
  if (!via.up) return;
  const auto generation = via.generation;
  const bool duplicate = chance(10) == 0;
  totals_.duplicates += duplicate ? 1 : 0;
  for (int copy = 0; copy < (duplicate ? 2 : 1); ++copy) {
    const bool survives_a_break = chance(2) == 0;
    at(1 + chance(longest_delay), [this, from, to, chunk, generation, survives_a_break, arrive] {
      if (lane(from, to, chunk).generation == generation || survives_a_break) return arrive();
      ++totals_.lost;
    });
  }
}

void Simulation::connect(MemberIndex a, MemberIndex b, std::size_t lane_index) {
  auto& connection = links_[{a, b, lane_index}];
  connection.up = true;
  ++connection.generation;
  for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
    auto& member = *replicas_[from].member;
    if (connection.generation > 1) totals_.repeated += member.unacknowledged();
    member.repeat_to(to, [&](const ChunkKey& key) { return key.chunk % lanes_ == lane_index; });
    act(from);
  }
}

/// Breaks a lane; it is there again after a while.
void Simulation::disturb() {
  auto a = static_cast<MemberIndex>(chance(members_ - 1));
  auto b = static_cast<MemberIndex>(a + 1 + chance(members_ - a - 1));
  const auto l = chance(lanes_);
  ++totals_.breaks;
  links_[{a, b, l}].up = false;
  ++links_[{a, b, l}].generation;
  at(chance(5 * longest_delay), [this, a, b, l] { connect(a, b, l); });
}

// ---- what must hold ----

/// Of each chunk a member keeps one message for each peer at most: its contribution for the owner or, as the
/// owner, the last result.
void Simulation::check_memory() {
  for (MemberIndex m = 0; m < members_; ++m) {
    std::size_t most = 0;
    for (ChunkId k = 0; k < layout_.chunk_count(); ++k) most += owners_[k] == m ? members_ - 1 : 1;
    if (replicas_[m].member->unacknowledged() > most) {
      fail("member " + std::to_string(m) + " keeps " + std::to_string(replicas_[m].member->unacknowledged()) +
           " messages; " + std::to_string(most) + " can be needed");
    }
  }
}

void Simulation::check_end() {
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    for (Round r = 1; r <= rounds_; ++r) {
      const auto times = delivered_[{p, r}].second;
      if (times != members_)
        fail("round " + std::to_string(r) + " of fragment " + std::to_string(p) + " reached " +
             std::to_string(times) + " of " + std::to_string(members_) + " members");
    }
  }
  for (const auto& replica : replicas_) {
    if (replica.member->unacknowledged() > 0) fail("messages stay unacknowledged");
  }
  const auto alive = std::ranges::count_if(made_, [](const auto& bytes) { return !bytes.expired(); });
  if (alive > 0) fail(std::to_string(alive) + " chunks are kept although every round is applied");
}

}  // namespace isthmus::outer_sync::protocol
