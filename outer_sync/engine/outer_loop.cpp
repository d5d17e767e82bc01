#include "isthmus/outer_sync/engine/outer_loop.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <string>
#include <utility>

#include "isthmus/base/archive.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/config/codec_plan.h"
#include "isthmus/outer_sync/log/chain.h"

namespace isthmus::outer_sync {
namespace {

double seconds_since(Trace::Clock::time_point begin) {
  return std::chrono::duration<double>(Trace::Clock::now() - begin).count();
}

bool is_rejected(const RoundResult& result, std::size_t chunk) {
  return !result.rejected.empty() && result.rejected[chunk];
}

std::vector<std::span<const std::byte>> spans_of(std::span<const protocol::SharedBytes> chunks) {
  std::vector<std::span<const std::byte>> spans;
  for (const auto& bytes : chunks) spans.emplace_back(*bytes);
  return spans;
}

std::string round_args(FragmentId p, protocol::Round round) {
  return "{\"fragment\":" + std::to_string(p) + ",\"round\":" + std::to_string(round) + "}";
}

/// The rule of a round sent at this step.
methods::OuterRule rule_of(const OuterConfig& config, std::uint64_t step) {
  const bool averages = config.averages_at(step);
  methods::OuterRule rule{.step = {.lr = averages ? 1 : static_cast<float>(config.optimizer.lr),
                                   .momentum = averages ? 0 : static_cast<float>(config.optimizer.momentum),
                                   .nesterov = config.optimizer.nesterov,
                                   .merge = config.carries() ? quant::Merge::carry : quant::Merge::mix,
                                   .alpha = static_cast<float>(config.merge_alpha)}};
  // With eager updates the outer step leaves the local parameters unchanged; go_ahead() sets them.
  if (config.eager()) rule.step.alpha = 1;
  if (config.co2()) {
    rule.co2 = {.penalty = static_cast<float>(config.staleness_penalty),
                .clip = static_cast<float>(config.momentum_clip)};
  }
  return rule;
}

Schedule schedule_of(const FragmentLayout& layout, const OuterConfig& config,
                     const SettingsTimeline& timeline) {
  return {layout.fragment_count(), timeline.phases(), static_cast<std::uint64_t>(config.sync_delay),
          static_cast<std::uint64_t>(config.warmup_steps), config.overlap()};
}

}  // namespace

OuterLoop::OuterLoop(const OuterConfig& config, const FragmentLayout& layout, LocalParameters& local,
                     RoundExchange& exchange, Trace& trace, std::uint64_t noise_seed)
    : OuterLoop(config, layout,
                std::make_unique<HostOuterState>(layout, local, config.sender_feedback(), config.eager()),
                exchange, trace, noise_seed) {}

OuterLoop::OuterLoop(const OuterConfig& config, const FragmentLayout& layout,
                     std::unique_ptr<OuterState> state, RoundExchange& exchange, Trace& trace,
                     std::uint64_t noise_seed)
    : layout_(layout),
      state_(std::move(state)),
      exchange_(exchange),
      trace_(trace),
      codecs_(codec_plan(config)),
      config_(config),
      timeline_(config),
      schedule_(schedule_of(layout, config, timeline_)),
      whole_round_(config.overlap() == Overlap::whole_round),
      eager_(config.eager()),
      carries_(config.carries()),
      share_(eager_ ? 1 / static_cast<float>(config.replicas) : 0),
      noise_seed_(noise_seed),
      final_sync_(config.final_sync),
      paced_by_time_(config.paced_by_time()),
      fragments_(layout.fragment_count()),
      ruled_(layout.fragment_count(), 0),
      tokens_(layout.fragment_count()),
      samples_(layout.fragment_count()),
      figures_(layout.fragment_count()),
      moment_steps_(layout.fragment_count()),
      gradient_residual_(config.warmup_steps > 0 ? layout.buffer_size() : 0, 0.0F) {
  assert(!eager_ || config.replicas > 0);
  if (!synchronous()) offer_state();
}

OuterLoop::~OuterLoop() { exchange_.serve_state_from(nullptr); }

void OuterLoop::offer_state() {
  exchange_.serve_state_from(
      [this](FragmentId fragment, bool moments) { return snapshot(fragment, moments); });
}

// ---- live settings ----

void OuterLoop::plan(const protocol::Settings& settings) {
  if (settings.changes != settings_.changes) {
    timeline_ = SettingsTimeline(config_, settings);
    schedule_ = schedule_of(layout_, config_, timeline_);
  }
  settings_ = settings;
}

/// Settings that differ from the known ones must not affect rounds applied here or steps up to `past`.
void OuterLoop::change_to(const protocol::Settings& settings, std::uint64_t past) {
  for (const auto ruled : ruled_) past = std::max(past, ruled);
  const auto same = settings_.common_with(settings);
  for (const auto* changes : {&std::as_const(settings_.changes), &settings.changes}) {
    if (same < changes->size() && (*changes)[same].step < past)
      exchange_.give_up("it reached step " + std::to_string(past) +
                        " without knowing the settings that apply after step " +
                        std::to_string((*changes)[same].step) + " on");
  }
  plan(settings);
}

/// A change takes effect after a step that no replica can reach when it is agreed, so it arrives here in
/// time.
void OuterLoop::take_settings() {
  auto now = exchange_.settings();
  if (!now || now == taken_) return;
  change_to(*now, step_);
  taken_ = std::move(now);
}

void OuterLoop::adopt(const protocol::Settings& settings) { change_to(settings, 0); }

methods::OuterRule OuterLoop::rule_of(FragmentId p, protocol::Round round) const {
  const auto step = schedule_.send_step(p, round);
  return outer_sync::rule_of(timeline_.at(step), step);
}

/// Share of the residual added to a round's outer gradient. The part of the last outer gradient that was not
/// sent is also still in the local parameters, as far as its merge kept them (alpha), and is sent again from
/// there.
float OuterLoop::carried_into(FragmentId p, protocol::Round round) const {
  const auto last = round > codecs_.warmup_rounds + 1 ? round - 1 : round;
  const auto alpha = timeline_.at(schedule_.send_step(p, last)).merge_alpha;
  return carries_ ? 0 : codecs_.feedback_decay * (1 - static_cast<float>(alpha));
}

// ---- synchronous warm-up ----

void OuterLoop::average_gradients(std::span<float> gradients, std::uint64_t tokens,
                                  std::span<const SampleRange> samples) {
  assert(synchronous() && gradients.size() == layout_.buffer_size());
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    const auto round = fragments_[p].round + 1;
    const auto chunks = layout_.chunks_of(p);
    auto& flight = in_flight_.emplace_back(InFlight{p, round, Trace::Clock::now()});
    samples_[p].add(samples);
    take_samples(flight);
    for (auto k = chunks.first; k < chunks.last; ++k) {
      const auto& chunk = layout_.chunk(k);
      auto bytes = exchange_.buffers().take(quant::encoded_size(codecs_.of(round), chunk.size));
      const auto bad = quant::encode(codecs_.of(round), gradients.subspan(chunk.begin, chunk.size),
                                     {std::span(gradient_residual_).subspan(chunk.begin, chunk.size)},
                                     noise_of(layout_, k, noise_seed_, round), *bytes);
      contribute(flight, tokens, step_ + 1, {k, bad, std::move(bytes)});
    }
  }
  for (; !in_flight_.empty(); in_flight_.pop_front()) {
    auto& flight = in_flight_.front();
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
  for (auto& flight : in_flight_) flight.leaving.check();
  exchange_.serve();
  take_settings();
  begin_log();
  if (synchronous()) {
    if (++step_ == schedule_.warmup_steps()) end_warmup();
    return;
  }
  for (auto& count : tokens_) count += tokens;
  for (auto& pending : samples_) pending.add(samples);
  go_where_others_are();
  if (frozen_ && !keep_up(Waiting::stall)) return count_local_step();
  frozen_ = false;
  local_steps_ = 0;
  begin_interval();
  owed_ += paced_by_time_ ? pace_.tick() : 1;
  static_cast<void>(next_step());
}

/// A replica that returns after an absence continues at the others' agreed step.
void OuterLoop::go_where_others_are() {
  const auto agreed = exchange_.agreed_step();
  if (agreed <= step_) return;
  step_ = agreed;
  owed_ = 0;
  pace_.cut_short();
}

bool OuterLoop::next_step() {
  if (step_ >= limit_) owed_ = 0;
  if (owed_ == 0 || frozen_) return false;
  take_settings();
  --owed_;
  ++step_;
  frozen_ = !keep_up(Waiting::stall);
  return true;
}

/// Begins a new interval if the current one is over. The last interval ends with the run, on all replicas
/// alike.
void OuterLoop::begin_interval() {
  if (!paced_by_time_ || !pace_.over()) return;
  const auto begin = step_ + owed_;
  const auto end = std::max(begin + 1, std::min(schedule_.interval_end(begin), limit_));
  pace_.begin(end - begin, speed_, reference_speed_);
}

std::uint64_t OuterLoop::step_after_next() {
  if (synchronous() || !paced_by_time_) return step_ + 1;
  begin_interval();
  return std::max(step_, std::min(limit_, step_ + owed_ + pace_.next()));
}

std::uint64_t OuterLoop::inner_steps() const {
  return paced_by_time_ && pace_.inner() > 0 ? pace_.inner() : schedule_.sync_every(step_ + 1);
}

/// Sends and applies what is due at this step, in fragment order. False if a result is missing. A replica
/// that was away may have to work through several rounds of a fragment.
bool OuterLoop::keep_up(Waiting why) {
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) send_what_is_due(p);
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    while (is_due(p)) {
      if (!apply(p, why)) return false;
      send_what_is_due(p);
    }
  }
  return true;
}

/// A fragment's rounds follow one another: the next one is sent when the last one is applied; with
/// whole-round overlap, when the one before the last is applied.
void OuterLoop::send_what_is_due(FragmentId p) {
  const auto newest = schedule_.rounds_sent(p, step_);
  for (auto n = flying(p); n < max_in_flight() && fragments_[p].round + n < newest; ++n) {
    send(p, fragments_[p].round + n + 1);
    // Reset the local parameters now, so that what was just sent is not sent again. (With another round in
    // flight this happens when that round is applied.)
    if (whole_round_ && n == 0) go_ahead(p, {});
  }
}

bool OuterLoop::is_due(FragmentId p) const {
  const auto flight = std::ranges::find(in_flight_, p, &InFlight::fragment);
  return flight != in_flight_.end() && flight->round <= schedule_.rounds_due(p, step_);
}

std::uint64_t OuterLoop::flying(FragmentId p) const {
  return static_cast<std::uint64_t>(std::ranges::count(in_flight_, p, &InFlight::fragment));
}

void OuterLoop::end_warmup() {
  state_->take_local();
  // Free what only the warm-up needed: its residual, and buffers for all fragments at once.
  gradient_residual_ = {};
  exchange_.buffers().trim();
  offer_state();
}

bool OuterLoop::complete_step() {
  if (frozen_ && commits_) frozen_ = !keep_up(Waiting::save);
  return !frozen_;
}

/// Local steps made while a view forms have a limit of their own (`extra_steps_`).
void OuterLoop::count_local_step() {
  ++stats_.uncommitted_steps;
  if (!commits_) ++local_steps_;
}

std::uint64_t OuterLoop::max_local_steps() const {
  const auto rounds = static_cast<std::uint64_t>(timeline_.at(step_ + 1).max_local_rounds);
  return rounds * std::max(schedule_.sync_every(step_), pace_.inner());
}

bool OuterLoop::may_train() {
  if (!frozen() || local_steps_ < max_local_steps()) return true;
  exchange_.serve();
  take_settings();
  go_where_others_are();
  frozen_ = !keep_up(Waiting::at_limit);
  return !frozen_;
}

void OuterLoop::finish() {
  begin_log();
  // Overdue rounds first. (There may be several, each sent when the one before it is applied.) A
  // data-parallel run has no rounds, although its schedule counts one per step.
  if (step_ > schedule_.warmup_steps()) static_cast<void>(keep_up(Waiting::finish));
  // With whole-round overlap, applying a result assumes that all local steps have been sent, so the final
  // sync sends them first.
  if (!whole_round_) apply_all_in_flight();
  if (step_ > schedule_.warmup_steps() && final_sync_) sync_once_more();
  apply_all_in_flight();
  frozen_ = false;
  if (log_) log_->flush();
}

void OuterLoop::apply_all_in_flight() {
  while (!in_flight_.empty()) {
    [[maybe_unused]] const bool here = apply(in_flight_.front().fragment, Waiting::finish);
  }
}

/// No replica trains on from here: the local parameters become the global ones, regardless of their content.
void OuterLoop::sync_once_more() {
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    const auto last = schedule_.rounds_sent(p, step_) + 1;
    if (fragments_[p].round >= last) continue;  // a replica that joined at the very end may have it
    auto& flight = send(p, last);
    flight.leaving.finish();
    flight.is_last = true;
    flight.own.clear();
  }
}

// ---- the round log ----

/// Not before this process's first step: until then the state may be replaced (by a checkpoint or another
/// member's state).
void OuterLoop::begin_log() {
  if (log_ || !log_plan_ || synchronous()) return;
  log_ = std::make_unique<log::RoundLog>(log_plan_->folder, log_plan_->header, log_plan_->budget, fragments_);
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) snapshot_to_log(p);
}

void OuterLoop::snapshot_to_log(FragmentId p) {
  if (!log_ || !log_->wants_snapshot(p)) return;
  const auto now = snapshot(p);
  log_->snapshot(p, now.state, now.theta, now.velocity);
}

// ---- one fragment ----

OuterLoop::InFlight& OuterLoop::send(FragmentId p, protocol::Round round) {
  const Trace::Scope scope(trace_, Trace::Row::outer, "encode", round_args(p, round));
  if (gradient_observer_) {
    const auto& fragment = layout_.fragment(p);
    const auto global = state_->global(fragment);
    gradient_observer_(p, step_, global, state_->local().read(fragment));
  }
  auto& flight = in_flight_.emplace_back(InFlight{p, round, Trace::Clock::now()});
  flight.weight = std::exchange(tokens_[p], 0);
  take_samples(flight);
  if (is_audited(p, round)) flight.spread = state_->spread(p);
  flight.leaving = state_->encode(p,
                                  {.codec = codecs_.of(round),
                                   .round = round,
                                   .carried = carried_into(p, round),
                                   .noise_seed = noise_seed_},
                                  exchange_.buffers(),
                                  // Sent at once: the next chunk is encoded while this one travels.
                                  [this, &flight, step = step_](EncodedChunk encoded) {
                                    contribute(flight, flight.weight, step, std::move(encoded));
                                  });
  return flight;
}

/// Takes as many ranges as a contribution may have. The rest goes with the next one: late, but exact.
void OuterLoop::take_samples(InFlight& flight) {
  flight.samples = samples_[flight.fragment].take_front(protocol::max_trained_on);
}

/// Runs on the thread that hands chunks over. `step`: the step at which the contribution was made.
void OuterLoop::contribute(InFlight& flight, std::uint64_t weight, std::uint64_t step, EncodedChunk encoded) {
  if (encoded.bad_element) {
    const bool warmup = flight.round <= codecs_.warmup_rounds;
    throw Error(ErrorKind::divergence,
                std::string(warmup ? "a gradient" : "an outer gradient") +
                    " is not finite, or too large for its codec, at element " +
                    std::to_string(layout_.place_in_fragment(encoded.chunk) + *encoded.bad_element) +
                    " of fragment " + std::to_string(layout_.fragment_of(encoded.chunk)) + " at step " +
                    std::to_string(step));
  }
  flight.own.push_back(encoded.bytes);
  const bool first = encoded.chunk == layout_.chunks_of(flight.fragment).first;
  exchange_.contribute(encoded.chunk, flight.round, std::move(encoded.bytes), weight,
                       first ? flight.samples : SampleSet());
}

/// Applies the fragment's oldest round in flight, which must exist. False if its result is missing.
bool OuterLoop::apply(FragmentId p, Waiting why) {
  const auto at = std::ranges::find(in_flight_, p, &InFlight::fragment);
  assert(at != in_flight_.end());
  if (!fetch(*at, why)) return false;
  auto flight = std::move(*at);
  in_flight_.erase(at);

  const Trace::Scope scope(trace_, Trace::Row::outer, "apply", round_args(p, flight.round));
  auto rule = rule_of(p, flight.round);
  ruled_[p] = schedule_.send_step(p, flight.round);
  if (flight.is_last) {
    rule.step.merge = quant::Merge::mix;
    rule.step.alpha = 0;
    ruled_[p] = step_;
  }
  const bool audited = is_audited(p, flight.round);
  if (audited) {
    measure(p, flight.round, flight.result->chunks, rule);
    figures_[p].spread_at_send = flight.spread;
  }
  if (const auto bad = state_->apply(p, codecs_.of(flight.round), flight.result->chunks, rule)) {
    refuse_result(flight.round, *bad);
  }
  if (eager_ && !flight.is_last) {
    go_ahead(p, flight.own);
    rule.step.alpha = 0;
  }
  settle(flight, rule.step);
  if (audited) figures_[p].spread_at_apply = state_->spread(p);
  record(flight);
  return true;
}

/// With eager updates: this replica's newest contribution takes effect here at once, while `stale`, its part
/// of the round just applied, is now in the global parameters.
void OuterLoop::go_ahead(FragmentId p, std::span<const protocol::SharedBytes> stale) {
  const auto fresh = std::ranges::find_if(
      in_flight_, [&](const InFlight& flight) { return flight.fragment == p && !flight.ahead; });
  std::span<const protocol::SharedBytes> own;
  if (fresh != in_flight_.end()) {
    fresh->leaving.finish();
    own = fresh->own;
    fresh->ahead = true;
  }
  state_->go_ahead(p, codecs_.codec, own, stale, share_,
                   outer_sync::rule_of(timeline_.at(step_ + 1), step_ + 1).step);
}

/// For a replica that copies the state of others: chunks still being handed over must not be sent after that.
void OuterLoop::finish_hand_overs() {
  for (auto& flight : in_flight_) flight.leaving = {};
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
    state_->shift_local(flight.fragment, codec, shifts, carry ? 1 : step.alpha - 1);
  stats_.left_out += left_out ? 1 : 0;
  stats_.rejected += rejected ? 1 : 0;
  if (!left_out) return;
  tokens_[flight.fragment] += flight.weight;
  samples_[flight.fragment].add(flight.samples);
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

/// A view change takes a few round trips. The carry merge keeps the steps made meanwhile. There are at most
/// as many as agreed steps around them, so the next outer gradient holds at most two intervals of steps.
bool OuterLoop::may_train_on() {
  if (step_ >= extra_until_) {
    extra_steps_ = inner_steps();
    extra_until_ = step_ + schedule_.sync_every(step_ + 1);
  }
  return carries_ && extra_steps_ > 0;
}

/// Waits for the result; false if it is still missing. In the warm-up and at the end it waits until the
/// result is here, because there is nothing to train on meanwhile.
bool OuterLoop::fetch(InFlight& flight, Waiting why) {
  if (flight.result) return true;
  const auto begin = Trace::Clock::now();
  std::optional<Trace::Scope> scope;
  if (why != Waiting::at_limit)  // these waits would fill the trace
    scope.emplace(trace_, Trace::Row::train, "outer_wait", round_args(flight.fragment, flight.round));
  flight.leaving.finish();
  const bool must = why == Waiting::warmup || why == Waiting::finish;
  const bool can_train_on = why == Waiting::stall && may_train_on();
  do {
    auto found = exchange_.wait(flight.fragment, flight.round, can_train_on);
    flight.result = std::move(found.result);
    commits_ = found.commits;
    if (!flight.result && found.commits) --extra_steps_;
  } while (must && !flight.result);
  waited(why) += seconds_since(begin);
  if (!flight.result) return false;
  [[maybe_unused]] const auto chunks = layout_.chunks_of(flight.fragment).size();
  assert(flight.result->chunks.size() == chunks && flight.result->included.size() == chunks);
  for (std::size_t i = 0; i < flight.own.size() && !eager_ && !carries_; ++i) {
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

/// Records that the fragment's next round is applied.
void OuterLoop::extend_chain(FragmentId p, std::span<const protocol::SharedBytes> results,
                             std::vector<SampleRange> samples) {
  auto& state = fragments_[p];
  const auto round = state.round + 1;
  const std::vector<std::span<const std::byte>> bytes = spans_of(results);
  state = {round, log::next_chain(state.chain, p, round, bytes)};
  ++stats_.rounds;
  if (log_) log_->append(p, state, rule_of(p, round), results);
  snapshot_to_log(p);
  if (is_audited(p, round)) exchange_.audited({p, round, state_->audit(p)});
  exchange_.applied(p, round, state.chain, std::move(samples));
}

// ---- queries ----

SampleSet OuterLoop::pending_samples() const {
  SampleSet out;
  for (const auto& pending : samples_) out.add(pending);
  for (const auto& flight : in_flight_) out.add(flight.samples);
  return out;
}

std::span<const float> OuterLoop::global_parameters() {
  // In the warm-up, local and global parameters are the same.
  if (step_ < schedule_.warmup_steps()) state_->take_local();
  return state_->global({0, layout_.buffer_size()});
}

Digest OuterLoop::global_hash() { return hash_of(std::as_bytes(global_parameters())); }

}  // namespace isthmus::outer_sync
