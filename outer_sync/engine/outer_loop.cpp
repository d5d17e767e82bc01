#include "isthmus/outer_sync/engine/outer_loop.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/config/codec_plan.h"

namespace isthmus::outer_sync {
namespace {

double seconds_since(Trace::Clock::time_point begin) {
  return std::chrono::duration<double>(Trace::Clock::now() - begin).count();
}

bool is_rejected(const RoundResult& result, std::size_t chunk) {
  return !result.rejected.empty() && result.rejected[chunk];
}

std::string round_args(FragmentId p, protocol::Round round) {
  return "{\"fragment\":" + std::to_string(p) + ",\"round\":" + std::to_string(round) + "}";
}

}  // namespace

OuterLoop::OuterLoop(const OuterConfig& config, const FragmentLayout& layout, LocalParameters& local,
                     RoundExchange& exchange, Trace& trace, std::uint64_t noise_seed)
    : OuterLoop(config, layout, std::make_unique<OuterState>(layout, local, config.sender_feedback()),
                exchange, trace, noise_seed) {}

OuterLoop::OuterLoop(const OuterConfig& config, const FragmentLayout& layout,
                     std::unique_ptr<OuterState> state, RoundExchange& exchange, Trace& trace,
                     std::uint64_t noise_seed)
    : layout_(layout),
      state_(std::move(state)),
      exchange_(exchange),
      trace_(trace),
      codecs_(codec_plan(config)),
      live_(config, layout, exchange),
      clock_(config.paced_by_time()),
      noise_seed_(noise_seed),
      moment_steps_(layout.fragment_count()),
      fragments_(layout.fragment_count()),
      unsent_(layout.fragment_count()),
      figures_(layout.fragment_count()),
      gradient_residual_(config.warmup_steps > 0 ? layout.buffer_size() : 0, 0.0F),
      gossip_(layout, *state_, exchange, trace,
              {.every = static_cast<std::uint64_t>(config.gossip_every),
               .codec = codecs_.codec,
               .reject = config.reject,
               .noise_seed = noise_seed}) {
  if (!synchronous()) offer_state();
}

OuterLoop::~OuterLoop() { exchange_.serve_state_from(nullptr); }

void OuterLoop::offer_state() {
  exchange_.serve_state_from(
      [this](FragmentId fragment, bool moments) { return snapshot(fragment, moments); });
}

// ---- synchronous warm-up ----

void OuterLoop::average_gradients(std::span<float> gradients, std::uint64_t tokens,
                                  std::span<const SampleRange> samples) {
  assert(synchronous() && gradients.size() == layout_.buffer_size());
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    const auto round = fragments_[p].round + 1;
    const auto chunks = layout_.chunks_of(p);
    auto& flight = in_flight_.add({.fragment = p, .round = round});
    unsent_.add_to(p, 0, samples);
    flight.samples = unsent_.take_samples(p);
    for (auto k = chunks.first; k < chunks.last; ++k) {
      const auto& chunk = layout_.chunk(k);
      auto bytes = exchange_.buffers().take(quant::encoded_size(codecs_.of(round), chunk.size));
      const auto bad = quant::encode(codecs_.of(round), gradients.subspan(chunk.begin, chunk.size),
                                     {std::span(gradient_residual_).subspan(chunk.begin, chunk.size)},
                                     noise_of(layout_, k, noise_seed_, round), *bytes);
      contribute(flight, tokens, step() + 1, {k, bad, std::move(bytes)});
    }
  }
  for (auto& flights = in_flight_.all(); !flights.empty(); flights.pop_front()) {
    auto& flight = flights.front();
    [[maybe_unused]] const bool here = fetch(flight, Waiting::warmup);
    const auto chunks = layout_.chunks_of(flight.fragment);
    for (auto k = chunks.first; k < chunks.last; ++k) {
      const auto& chunk = layout_.chunk(k);
      if (!quant::decode(codecs_.of(flight.round), *flight.result->chunks[k - chunks.first],
                         gradients.subspan(chunk.begin, chunk.size))) {
        refuse_result(flight.round, k);
      }
    }
    settle(flight, {});
    record(flight);
    ++stats_.warmup_rounds;
  }
}

// ---- the schedule ----

void OuterLoop::after_step(std::uint64_t tokens, std::span<const SampleRange> samples) {
  for (auto& flight : in_flight_.all()) flight.hand_over.check();
  gossip_.check();
  exchange_.serve();
  live_.take(step());
  begin_log();
  if (synchronous()) {
    clock_.make_warmup_step();
    if (!synchronous()) end_warmup();
    return;
  }
  unsent_.add(tokens, samples);
  go_where_others_are();
  if (clock_.stands_still() && !complete(Waiting::stall)) {
    ++stats_.uncommitted_steps;
    return clock_.count_local_step();
  }
  clock_.run_on();
  clock_.count_inner_step(schedule());
  static_cast<void>(next_step());
}

/// A replica that returns after an absence continues at the others' agreed step.
void OuterLoop::go_where_others_are() {
  const auto agreed = exchange_.agreed_step();
  if (agreed > step()) clock_.go_to(agreed);
}

bool OuterLoop::next_step() {
  if (!clock_.has_step()) return false;
  live_.take(step());
  clock_.make_step();
  clock_.set_still(!complete(Waiting::stall));
  return true;
}

/// Does all that belongs to this agreed step. False if a result is missing.
bool OuterLoop::complete(Waiting why) {
  if (!send_and_apply_due(why)) return false;
  gossip_.make_step(schedule(), step(), in_flight_, unsent_);
  return true;
}

/// Sends and applies what is due at this step, in fragment order. False if a result is missing. A replica
/// that was away may have to work through several rounds of a fragment.
bool OuterLoop::send_and_apply_due(Waiting why) {
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) send_what_is_due(p);
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    while (in_flight_.is_due(p, schedule(), step())) {
      if (!apply(p, why)) return false;
      send_what_is_due(p);
    }
  }
  return true;
}

/// A fragment's rounds follow one another: the next one is sent when the last one is applied.
void OuterLoop::send_what_is_due(FragmentId p) {
  const auto next = fragments_[p].round + 1;
  if (in_flight_.oldest(p) == nullptr && next <= schedule().rounds_sent(p, step())) begin_round(p, next);
}

bool OuterLoop::complete_step() {
  if (clock_.stands_still() && clock_.rounds_commit()) clock_.set_still(!complete(Waiting::save));
  return !clock_.stands_still();
}

bool OuterLoop::may_train() {
  const auto rounds = static_cast<std::uint64_t>(live_.at(step() + 1).max_local_rounds);
  if (clock_.may_train(rounds, schedule())) return true;
  exchange_.serve();
  live_.take(step());
  go_where_others_are();
  clock_.set_still(!complete(Waiting::at_limit));
  return !clock_.stands_still();
}

void OuterLoop::end_warmup() {
  state_->take_local();
  // Free what only the warm-up needed: its residual, and buffers for all fragments at once.
  gradient_residual_ = {};
  exchange_.buffers().trim();
  offer_state();
}

void OuterLoop::finish() {
  begin_log();
  // Overdue rounds first. (There may be several, each sent when the one before it is applied.) A
  // data-parallel run has no rounds, although its schedule counts one per step.
  if (step() > schedule().warmup_steps()) static_cast<void>(send_and_apply_due(Waiting::finish));
  apply_all_in_flight();
  if (step() > schedule().warmup_steps() && live_.base().final_sync) sync_once_more();
  apply_all_in_flight();
  clock_.set_still(false);
  if (log_) log_->flush();
}

void OuterLoop::apply_all_in_flight() {
  while (!in_flight_.empty()) {
    [[maybe_unused]] const bool here = apply(in_flight_.all().front().fragment, Waiting::finish);
  }
}

/// No replica trains on from here: the local parameters become the global ones, regardless of their content.
void OuterLoop::sync_once_more() {
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    const auto last = schedule().rounds_sent(p, step()) + 1;
    if (fragments_[p].round >= last) continue;  // a replica that joined at the very end may have it
    auto& flight = begin_round(p, last);
    flight.hand_over.finish();
    flight.is_last = true;
    flight.own.clear();
  }
}

// ---- one fragment ----

InFlight& OuterLoop::begin_round(FragmentId p, protocol::Round round) {
  const Trace::Scope scope(trace_, Trace::Row::outer, "encode", round_args(p, round));
  if (gradient_observer_) {
    const auto& fragment = layout_.fragment(p);
    const auto global = state_->global(fragment);
    gradient_observer_(p, step(), global, state_->local().read(fragment));
  }
  gossip_.forget(p);
  auto& flight = in_flight_.add({.fragment = p, .round = round});
  flight.weight = unsent_.take_tokens(p);
  flight.samples = unsent_.take_samples(p);
  if (is_checked(p, round)) flight.spread = state_->spread(p);
  flight.hand_over = state_->encode(p,
                                    {.codec = codecs_.of(round),
                                     .round = round,
                                     .carried = live_.carried_into(p, round),
                                     .noise_seed = noise_seed_},
                                    exchange_.buffers(),
                                    // Sent at once: the next chunk is encoded while this one travels.
                                    [this, &flight, step = step()](EncodedChunk encoded) {
                                      contribute(flight, flight.weight, step, std::move(encoded));
                                    });
  return flight;
}

/// Runs on the thread that hands chunks over. `step`: the step at which the contribution was made.
void OuterLoop::contribute(InFlight& flight, std::uint64_t weight, std::uint64_t step, EncodedChunk encoded) {
  if (encoded.bad_element) {
    const bool warmup = flight.round <= codecs_.warmup_rounds;
    throw bad_element(layout_, encoded, warmup ? "a gradient" : "an outer gradient", step);
  }
  flight.own.push_back(encoded.bytes);
  const bool first = encoded.chunk == layout_.chunks_of(flight.fragment).first;
  exchange_.contribute(encoded.chunk, flight.round, std::move(encoded.bytes), weight,
                       first ? flight.samples : SampleSet());
}

/// Applies the fragment's oldest round in flight, which must exist. False if its result is missing.
bool OuterLoop::apply(FragmentId p, Waiting why) {
  if (!fetch(*in_flight_.oldest(p), why)) return false;
  const auto flight = in_flight_.take_oldest(p);

  const Trace::Scope scope(trace_, Trace::Row::outer, "apply", round_args(p, flight.round));
  auto rule = live_.rule_of(p, flight.round);
  live_.applied(p, flight.is_last ? step() : schedule().send_step(p, flight.round));
  if (flight.is_last) {
    rule.merge = quant::Merge::mix;
    rule.alpha = 0;
  }
  const bool checked = is_checked(p, flight.round);
  if (checked) {
    measure(p, flight.round, flight.result->chunks, rule);
    figures_[p].spread_at_send = flight.spread;
  }
  if (const auto bad = state_->apply(p, codecs_.of(flight.round), flight.result->chunks, rule)) {
    refuse_result(flight.round, *bad);
  }
  settle(flight, rule);
  if (checked) figures_[p].spread_at_apply = state_->spread(p);
  record(flight);
  if (applied_observer_) applied_observer_(p, flight.round, flight.result->samples);
  return true;
}

/// For a replica that copies the state of others: chunks still being handed over must not be sent after that.
void OuterLoop::finish_hand_overs() {
  for (auto& flight : in_flight_.all()) flight.hand_over = {};
  gossip_.forget_all();
}

/// Makes sure that each contribution reaches the other replicas exactly once. Let x be the contribution, u
/// the outer step and q the progress made since the send. Then local - theta is
///   after mix:    -alpha (x - u - q). If the result lacks x, (1 - alpha) x is subtracted.
///   after carry:  -x + q. If the result has x, it is added.
/// So the next outer gradient holds exactly what is in no result yet, with the tokens behind it. (If a result
/// has only some of the chunks, their tokens count twice: this is rare, and a weight of 0 would lose the
/// other chunks.)
void OuterLoop::settle(const InFlight& flight, const quant::OuterStep& step) {
  const auto first = layout_.chunks_of(flight.fragment).first;
  const bool carry = step.merge == quant::Merge::carry;
  const auto& codec = codecs_.of(flight.round);
  std::vector<protocol::SharedBytes> shifts(flight.own.size());
  bool left_out = false, rejected = false;
  for (std::size_t i = 0; i < flight.own.size(); ++i) {
    const bool refused = is_rejected(*flight.result, i);  // settled too: it must not be sent again
    rejected |= refused;
    if (flight.result->included[i] || refused) {
      if (carry) shifts[i] = flight.own[i];
      continue;
    }
    left_out = true;
    if (flight.round <= codecs_.warmup_rounds) {
      put_back_gradient(first + static_cast<ChunkId>(i), *flight.own[i]);
    } else if (!carry && step.alpha != 1) {
      shifts[i] = flight.own[i];
    }
  }
  if (std::ranges::any_of(shifts, [](const auto& bytes) { return bytes != nullptr; }))
    state_->shift_local(flight.fragment, codec, {{shifts, carry ? 1 : step.alpha - 1}});
  stats_.left_out += left_out ? 1 : 0;
  stats_.rejected += rejected ? 1 : 0;
  if (left_out) unsent_.add_to(flight.fragment, flight.weight, flight.samples.ranges());
}

/// A gradient changes no parameters, so all of it is added to the next one.
void OuterLoop::put_back_gradient(ChunkId chunk, const Bytes& bytes) {
  const auto& range = layout_.chunk(chunk);
  [[maybe_unused]] const bool decoded = quant::decode_accumulate(
      codecs_.warmup_codec, bytes, 1.0F, std::span(gradient_residual_).subspan(range.begin, range.size));
  assert(decoded);
}

double& OuterLoop::waited(Waiting why) {
  if (why == Waiting::warmup) return stats_.warmup_wait_seconds;
  if (why == Waiting::finish) return stats_.finish_seconds;
  return stats_.stall_seconds;
}

/// Waits for the result; false if it is still missing. In the warm-up and at the end it waits until the
/// result is here, because there is nothing to train on meanwhile.
bool OuterLoop::fetch(InFlight& flight, Waiting why) {
  if (flight.result) return true;
  const auto begin = Trace::Clock::now();
  std::optional<Trace::Scope> scope;
  if (why != Waiting::at_limit)  // these waits would fill the trace
    scope.emplace(trace_, Trace::Row::train, "outer_wait", round_args(flight.fragment, flight.round));
  flight.hand_over.finish();
  const bool must = why == Waiting::warmup || why == Waiting::finish;
  // The carry merge keeps the steps made while a view forms.
  const bool can_train_on = why == Waiting::stall && carries() && clock_.may_train_on(schedule());
  do {
    auto found = exchange_.wait(flight.fragment, flight.round, can_train_on);
    flight.result = std::move(found.result);
    clock_.waited(found.commits, flight.result.has_value());
  } while (must && !flight.result);
  waited(why) += seconds_since(begin);
  if (!flight.result) return false;
  stats_.late_results += why == Waiting::stall && flight.result->came > begin ? 1 : 0;
  [[maybe_unused]] const auto chunks = layout_.chunks_of(flight.fragment).size();
  assert(flight.result->chunks.size() == chunks && flight.result->included.size() == chunks);
  for (std::size_t i = 0; i < flight.own.size() && !carries(); ++i) {
    if (flight.result->included[i] || is_rejected(*flight.result, i)) flight.own[i] = nullptr;
  }
  return true;
}

void OuterLoop::refuse_result(protocol::Round round, ChunkId chunk) {
  throw Error(ErrorKind::divergence, "the result of chunk " + std::to_string(chunk) + " in round " +
                                         std::to_string(round) + " does not decode");
}

void OuterLoop::record(const InFlight& flight) {
  trace_.async(Trace::Row::outer, "fragment in flight", (std::uint64_t{flight.fragment} << 32) | flight.round,
               flight.sent, Trace::Clock::now(), round_args(flight.fragment, flight.round));
  extend_chain(flight.fragment, flight.result->chunks, flight.result->samples);
}

// ---- queries ----

SampleSet OuterLoop::pending_samples() const {
  SampleSet out;
  for (const auto& pending : unsent_.samples()) out.add(pending);
  for (const auto& flight : in_flight_.all()) out.add(flight.samples);
  return out;
}

std::span<const float> OuterLoop::global_parameters() {
  // In the warm-up, local and global parameters are the same.
  if (synchronous()) state_->take_local();
  return state_->global({0, layout_.buffer_size()});
}

Digest OuterLoop::global_hash() { return hash_of(std::as_bytes(global_parameters())); }

}  // namespace isthmus::outer_sync
