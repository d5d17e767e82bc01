// Replicas of a world: training, contributing, reducing, applying.

#include "world.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

namespace isthmus::outer_sync::protocol {

using namespace std::chrono_literals;

std::optional<MemberIndex> World::index_of(const Process& process, NodeId other) const {
  if (!process.alive || !process.member || !process.in_run) return std::nullopt;
  const auto& members = process.member->view().members;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (id_of(members[i]) == processes_[other].replica) return static_cast<MemberIndex>(i);
  }
  return std::nullopt;
}

Time World::think(const Process& process) { return (10ms + some(150ms)) * process.slowness / pace_; }

void World::train(NodeId m, FragmentId p) {
  auto& process = processes_[m];
  if (!process.member || !process.in_run || m == reducer_) return;
  const auto last = process.member->fragments()[p].round;
  const auto round = std::max(process.contributed[p], last) + 1;
  if (round > last + in_flight_) return;
  if (round > process.member->settings().pause_after) {
    count("waited in a pause");
    return in(process, 100ms, [this, m, p] { train(m, p); });
  }
  process.contributed[p] = round;
  end_exchange(process, p);
  process.sent_under[{p, round}] = settings_at(process, round);
  const auto chunks = layout_.chunks_of(p);
  const auto weight = 1 + chance(3);
  const auto samples = draw_samples(process, p, round);
  for (auto k = chunks.first; k < chunks.last; ++k) {
    auto bytes = std::make_shared<Bytes>(quant::encoded_size(codecs_.of(round), layout_.chunk(k).size));
    const auto bits = random_bits(seed_, 1, counter_++);
    for (std::size_t i = 0; i < bytes->size(); ++i) (*bytes)[i] = static_cast<std::byte>(bits >> (i % 8 * 8));
    maker_[bytes.get()] = process.replica;
    kept_.push_back(bytes);
    made_[{process.replica, round, k}] = {};
    process.member->contribute(k, round, bytes, weight, squares_of(m, *bytes),
                               k == chunks.first ? samples : SampleSet());
  }
  act(m);
  if (round < last + in_flight_) in(process, think(process), [this, m, p] { train(m, p); });
  look_for_results(m, p);
}

void World::look_for_results(NodeId m, FragmentId p) {
  auto& process = processes_[m];
  if (!process.member || process.applying) {
    if (process.member) in(process, 5ms, [this, m, p] { look_for_results(m, p); });
    return;
  }
  const auto round = process.member->fragments()[p].round + 1;
  if (auto restored = process.restored.extract({p, round})) {
    process.applying = std::move(restored.mapped());
    return in(process, some(10ms), [this, m, p, round] { apply(processes_[m], p, round); });
  }
  if (!process.rounds.complete().contains({p, round})) return;
  if (m != reducer_ && process.contributed[p] < round && chance(2) == 0) {
    count("late contribution");
    return train(m, p);
  }
  process.applying = process.rounds.take({p, round});
  in(process, (chance(20) == 0 ? some(300ms) : some(10ms)) / pace_,
     [this, m, p, round] { apply(processes_[m], p, round); });
}

bool World::is_of_checkpoint(const Deliver& round) const {
  return std::ranges::any_of(initial_.decided,
                             [&](const DecidedRound& decided) { return decided.results == round.results; });
}

void World::apply(Process& process, FragmentId p, Round r) {
  if (!process.applying || process.applying->fragment != p || process.applying->round != r) return;
  const auto round = *std::exchange(process.applying, std::nullopt);
  process.rounds.applied({p, r});
  if (!is_of_checkpoint(round)) check_result(process, round);
  const auto before = process.member->fragments()[p].chain;
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(before.bytes))).update(p).update(r);
  for (const auto& bytes : round.results) hasher.update(std::span(*bytes));
  const FragmentState state{r, hasher.finish()};
  settle_samples(process, round);
  check_settings(process, p, state);
  process.member->applied(p, r, state.chain, round.samples);
  check_ledger(process, p);
  mix(prefix_of(state.chain));
  count("round applied");
  if (is_of_checkpoint(round))
    count(process.id == reducer_ ? "reducer got a round of a checkpoint" : "round of a checkpoint applied");
  check_chain(process);
  forward(process, p, state);
  act(process.id);
  try_view(process);
  if (!process.member) return;
  const auto trains_on = think(process);
  if (codecs_.exchanges && chance(2) == 0)
    in(process, trains_on / 2, [this, m = process.id, p] { exchange(m, p); });
  in(process, trains_on, [this, m = process.id, p] { train(m, p); });
  in(process, some(60ms) / pace_, [this, m = process.id, p] { look_for_results(m, p); });
  ambush(Moment::applied, process.id);
}

// ---- settings that change during the run ----

/// A command of an operator that does not wait for the answer.
void World::command(const std::string& verb) {
  if (!coordinator_) return;
  const auto id = next_connection_++;
  Command asked{.run = options_.run, .by = "operator", .verb = verb, .arguments = {}, .member = {}};
  if (verb == "set") asked.arguments = {"key=" + std::to_string(++commands_)};
  if (verb == "set" && commands_ % 3 == 0) asked.at = 5 + commands_ * 10;
  tell("operator command: " + verb);
  coordinator_->receive(id, now_, asked);
  act_coordinator();
}

void World::steer() {
  const auto which = random_bits(seed_, 7, commands_++) % 4;
  command(which == 0 ? "pause" : which == 1 ? "checkpoint" : "set");
  if (which == 0) at(1500ms, [this] { command("resume"); });
}

/// A run must not stay paused.
void World::go_on_in_the_calm() {
  if (coordinator_ && coordinator_->settings().pause_after != Settings::never) command("resume");
  if (now_ < end_) at(400ms, [this] { go_on_in_the_calm(); });
}

/// Here a round of a fragment is a step. Between a seal and its view, results that have arrived are applied,
/// and the member contributes to as many rounds as may be in flight.
std::uint64_t World::reach_of(const Process& process) const {
  if (process.id == reducer_) return 0;
  if (!process.in_run) return Settings::never;
  Round furthest = 0;
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p)
    furthest =
        std::max({furthest, process.contributed[p], process.member->fragments()[p].round + Member::window});
  return furthest + in_flight_;
}

std::string World::settings_at(const Process& process, Round round) {
  return changed_value(process.member->settings(), "key", round);
}

/// Whether a view came to nothing, and a change of settings with it. The outer loop checks this.
bool World::has_gone_on_otherwise(const Process& process, const Settings& before) const {
  const auto& now = process.member->settings();
  const auto same = before.common_with(now);
  Round past = 0;
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p)
    past = std::max({past, process.contributed[p], process.member->fragments()[p].round});
  const auto concerns = [&](const Settings& settings) {
    return same < settings.changes.size() && settings.changes[same].step < past;
  };
  return process.id != reducer_ && (concerns(before) || concerns(now));
}

void World::check_settings(Process& process, FragmentId p, const FragmentState& state) {
  const auto now = settings_at(process, state.round);
  const auto sent = process.sent_under.extract({p, state.round});
  if (sent && sent.mapped() != now)
    fail("a round was sent under other settings than it is applied under (I13)");
  const auto [first, is_new] = made_under_.try_emplace({p, state.round, prefix_of(state.chain)}, now);
  if (first->second != now) fail("a round is applied under other settings here than elsewhere (I13)");
  if (!now.empty()) count("round under changed settings");
}

// ---- training samples ----

/// The parameters trained on these samples are gone or were replaced.
void World::forget_samples(Process& process) {
  process.order.forget();
  process.drawn = {};
  process.pending.assign(layout_.fragment_count(), {});
  process.handed_in.clear();
  process.rejected.assign(layout_.fragment_count(), {});
}

SampleSet World::draw_samples(Process& process, FragmentId p, Round round) {
  const auto range = process.order.next(1 + chance(900));
  check_drawn(process, range);
  process.drawn.add(range);
  drawn_by_[process.replica].add(range);
  for (auto& pending : process.pending) pending.add(range);
  return process.handed_in[{p, round}] = process.pending[p].take_front(max_trained_on);
}

/// Samples of a left-out contribution go into the next round.
void World::settle_samples(Process& process, const Deliver& round) {
  const auto own = process.handed_in.extract({round.fragment, round.round});
  if (!own) return;
  for (std::size_t i = 0; i < round.included.size(); ++i) {
    if (!round.included[i] && !round.rejected[i]) return process.pending[round.fragment].add(own.mapped());
  }
  if (std::ranges::count(round.rejected, true) > 0) process.rejected[round.fragment].add(own.mapped());
}

void World::act(NodeId m) {
  auto& process = processes_[m];
  const auto each = [&](auto& action) { carry_out(m, action); };
  if (process.member) carry_out_actions(*process.member, each);
  if (process.exchanges) carry_out_actions(*process.exchanges, each);
}

void World::carry_out(NodeId m, const SendChunk& send) {
  const auto to = node_of(processes_[m].member->view().members.at(send.peer));
  send_bulk(m, to, send.message.key.chunk, [this, m, to, message = send.message] {
    const auto from = index_of(processes_[to], m);
    if (!from) return;
    auto& receiver = processes_[to];
    const bool in_pair = message.key.kind == ChunkKind::exchange;
    const auto refused =
        in_pair ? receiver.exchanges->receive(*from, message) : receiver.member->receive(*from, message);
    if (refused) fail("refused: " + *refused + " (I11)");
    act(to);
  });
}

void World::carry_out(NodeId m, const SendAck& ack) {
  const auto to = node_of(processes_[m].member->view().members.at(ack.peer));
  send_bulk(m, to, ack.key.chunk, [this, m, to, ack] {
    const auto from = index_of(processes_[to], m);
    if (!from) return;
    if (ack.key.kind == ChunkKind::exchange)
      processes_[to].exchanges->acknowledged(*from, ack.view, ack.key);
    else
      processes_[to].member->acknowledged(*from, ack.view, ack.key);
  });
}

void World::carry_out(NodeId m, const SendBegun& begun) {
  const auto to = node_of(processes_[m].member->view().members.at(begun.peer));
  for (std::size_t l = 0; l < lanes_; ++l) {
    send_bulk(m, to, l, [this, m, to, view = begun.view] {
      const auto from = index_of(processes_[to], m);
      if (!from) return;
      processes_[to].member->peer_begun(*from, view);
      if (processes_[to].exchanges) processes_[to].exchanges->peer_begun(*from, view);
      act(to);
    });
  }
}

void World::carry_out(NodeId, const ForgetResidual&) { count("owner's residual forgotten"); }

void World::carry_out(NodeId m, Deliver& round) {
  auto& process = processes_[m];
  const auto p = round.fragment;
  if (round.round <= process.member->fragments()[p].round)
    fail("a round is delivered after it was applied (I11)");
  process.rounds.deliver({p, round.round}, std::move(round));
  in(process, (chance(6) == 0 ? some(1s) : some(apply_delay_)) / pace_,
     [this, m, p] { look_for_results(m, p); });
  ambush(Moment::delivered, m);
}

/// Healthy norms are between 1 and 2, so a limit of four times the median never rejects them.
double World::squares_of(NodeId m, const Bytes& bytes) const {
  if (sick_ == m) return 1e6;
  return 1 + static_cast<double>(static_cast<std::uint8_t>(bytes.front())) / 85;
}

/// Instead of the mean, makes bytes that depend on all contributions, so that different contributions give a
/// different result.
void World::carry_out(NodeId m, const Reduce& job) {
  Result result;
  if (m == reducer_) count("reduced by a reducer");
  result.of = static_cast<std::size_t>(std::ranges::count_if(processes_[m].member->view().members, trains));
  Measured measured;
  for (const auto& bytes : job.contributions) {
    const auto maker = maker_.at(bytes.get());
    result.present.push_back(maker);
    measured.squares.push_back(squares_of(node_of_.at(maker), *bytes));
  }
  measured.dots.resize(measured.squares.size(), 0);
  const auto stays = kept(job.reject, measured.squares);
  Hasher hasher;
  for (std::size_t i = 0; i < job.contributions.size(); ++i) {
    if (!stays[i]) continue;
    hasher.update(std::span(*job.contributions[i])).update(job.weights[i]);
    result.contributors.push_back(result.present[i]);
  }
  if (!produced_.insert({job.view, job.round, job.chunk}).second)
    fail("two results of one chunk in one view (I8)");
  if (result.present.size() < result.of) {
    count("closed by quorum");
    if (job.view < newest_begun_) fail("a chunk is closed by quorum after another view has begun (I9)");
  }
  const auto digest = hasher.finish();
  auto bytes =
      std::make_shared<Bytes>(quant::encoded_size(codecs_.of(job.round), layout_.chunk(job.chunk).size));
  for (std::size_t i = 0; i < bytes->size(); ++i)
    (*bytes)[i] = static_cast<std::byte>(digest.bytes.at(i % digest.bytes.size()));
  results_[bytes.get()] = result;
  kept_.push_back(bytes);
  in(processes_[m], some(20ms),
     [this, m, view = job.view, chunk = job.chunk, round = job.round, bytes, measured = std::move(measured)] {
       if (!processes_[m].member) return;
       processes_[m].member->reduced(view, chunk, round, bytes, measured);
       act(m);
       ambush(Moment::made, m);
     });
}

}  // namespace isthmus::outer_sync::protocol
