// A world: drawn from its seed, and run event by event.

#include "world.h"

#include <algorithm>
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
  codecs_.exchanges = random_bits(seed_, 9, 0) % 3 == 0;
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
  initial_.fragments.resize(layout_.fragment_count());
  if (random_bits(seed_, 8, 0) % 4 == 0) resume_from_a_checkpoint();
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

/// Some fragments have a round in flight in it, with its result. In some worlds a trainer is away at first.
void World::resume_from_a_checkpoint() {
  constexpr Round last = 3;
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    initial_.fragments[p] = {last, Hasher().update(p).finish()};
    initial_.ledger.emplace_back();
    for (Round round = 1; round <= last; ++round) initial_.ledger[p].add({});
    if (random_bits(seed_, 8, 1 + p) % 3 == 0) continue;
    auto& decided = initial_.decided.emplace_back(DecidedRound{p, last + 1, {}, {}});
    const auto chunks = layout_.chunks_of(p);
    for (auto k = chunks.first; k < chunks.last; ++k)
      decided.results.push_back(std::make_shared<const Bytes>(
          quant::encoded_size(codecs_.of(last + 1), layout_.chunk(k).size), static_cast<std::byte>(k)));
  }
  const auto late = random_bits(seed_, 8, 101) % members_;
  if (!initial_.decided.empty() && late != reducer_ && random_bits(seed_, 8, 100) % 3 == 0) late_ = late;
}

std::string World::describe() const {
  return "seed " + std::to_string(seed_) + ": " + std::to_string(members_) + " members" +
         (reducer_ ? ", m" + std::to_string(*reducer_) + " is a reducer" : "") + ", at least " +
         std::to_string(options_.least) + ", quorum " + std::to_string(closing_.quorum) + ", " +
         std::to_string(layout_.fragment_count()) + " fragments in " + std::to_string(layout_.chunk_count()) +
         " chunks, " + std::to_string(lanes_) + " lanes, " +
         (sick_ ? "member " + std::to_string(*sick_) + " sick, " : std::string()) +
         (codecs_.exchanges ? "exchanges in pairs, " : "") +
         (initial_.ledger.empty() ? "" : "resumed from a checkpoint, ") + std::to_string(in_flight_) +
         " rounds in flight, messages take up to " + std::to_string(latency_ / 1ms) +
         " ms, results wait up to " + std::to_string(apply_delay_ / 1ms) + " ms, pace " +
         std::to_string(pace_) + ", " + std::to_string(disturbances_) + " disturbances, " +
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

}  // namespace isthmus::outer_sync::protocol
