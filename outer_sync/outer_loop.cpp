#include "isthmus/outer_sync/outer_loop.h"

#include <algorithm>
#include <cassert>
#include <string>

#include "isthmus/base/archive.h"
#include "isthmus/base/error.h"

namespace isthmus::outer_sync {
namespace {

double seconds_since(Trace::Clock::time_point begin) {
  return std::chrono::duration<double>(Trace::Clock::now() - begin).count();
}

std::string round_args(FragmentId p, protocol::Round round) {
  return "{\"fragment\":" + std::to_string(p) + ",\"round\":" + std::to_string(round) + "}";
}

quant::OuterStep step_rule(const OuterConfig& config) {
  return {.lr = static_cast<float>(config.optimizer.lr),
          .momentum = static_cast<float>(config.optimizer.momentum),
          .nesterov = config.optimizer.nesterov,
          .alpha = static_cast<float>(config.merge_alpha)};
}

}  // namespace

protocol::CodecPlan codec_plan(const OuterConfig& config, std::uint64_t seed) {
  return {.codec = config.codec_spec(),
          .warmup_codec = config.warmup_codec_spec(),
          .warmup_rounds = static_cast<protocol::Round>(config.warmup_steps),
          .error_feedback = config.error_feedback,
          .feedback_decay = static_cast<float>(config.feedback_decay),
          .seed = seed};
}

OuterLoop::OuterLoop(const OuterConfig& config, const FragmentLayout& layout, LocalParameters& local,
                     RoundExchange& exchange, Trace& trace, std::uint64_t noise_seed)
    : OuterLoop(config, layout, std::make_unique<HostOuterState>(layout, local, config.error_feedback),
                exchange, trace, noise_seed) {}

OuterLoop::OuterLoop(const OuterConfig& config, const FragmentLayout& layout,
                     std::unique_ptr<OuterState> state, RoundExchange& exchange, Trace& trace,
                     std::uint64_t noise_seed)
    : layout_(layout),
      state_(std::move(state)),
      exchange_(exchange),
      trace_(trace),
      codecs_(codec_plan(config)),
      schedule_(layout.fragment_count(), static_cast<std::uint64_t>(config.sync_every),
                static_cast<std::uint64_t>(config.sync_delay),
                static_cast<std::uint64_t>(config.warmup_steps)),
      step_rule_(step_rule(config)),
      // What was not sent is still in the local parameters too, to the part of them that a merge keeps, and
      // comes again by itself with the next outer gradient.
      carried_(codecs_.feedback_decay * (1 - step_rule_.alpha)),
      noise_seed_(noise_seed),
      final_sync_(config.final_sync),
      fragments_(layout.fragment_count()),
      tokens_(layout.fragment_count()),
      gradient_residual_(config.warmup_steps > 0 ? layout.buffer_size() : 0, 0.0F) {}

// ---- synchronous warm-up ----

void OuterLoop::average_gradients(std::span<float> gradients, std::uint64_t tokens) {
  assert(synchronous() && gradients.size() == layout_.buffer_size());
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    const auto round = fragments_[p].round + 1;
    const auto chunks = layout_.chunks_of(p);
    in_flight_.push_back({p, round, step_, Trace::Clock::now(), std::nullopt});
    for (auto k = chunks.first; k < chunks.last; ++k) {
      const auto& chunk = layout_.chunk(k);
      auto bytes = exchange_.buffers().take(quant::encoded_size(codecs_.of(round), chunk.size));
      const auto bad = quant::encode(codecs_.of(round), gradients.subspan(chunk.begin, chunk.size),
                                     {std::span(gradient_residual_).subspan(chunk.begin, chunk.size)},
                                     noise_of(layout_, k, noise_seed_, round), *bytes);
      contribute(round, tokens, {k, bad, std::move(bytes)});
    }
  }
  for (; !in_flight_.empty(); in_flight_.pop_front()) {
    auto& flight = in_flight_.front();
    fetch(flight, Waiting::warmup);
    const auto chunks = layout_.chunks_of(flight.fragment);
    for (auto k = chunks.first; k < chunks.last; ++k) {
      const auto& chunk = layout_.chunk(k);
      if (!quant::decode(codecs_.of(flight.round), *flight.result->chunks[k - chunks.first],
                         gradients.subspan(chunk.begin, chunk.size))) {
        refuse_result(flight, k);
      }
    }
    record(flight);
    ++stats_.warmup_rounds;
  }
}

// ---- the schedule ----

void OuterLoop::after_step(std::uint64_t tokens) {
  ++step_;
  if (step_ <= schedule_.warmup_steps()) {
    if (step_ < schedule_.warmup_steps()) return;
    state_->take_local();
    // What only the warm-up needed: its residual, and buffers for all fragments at once.
    gradient_residual_ = {};
    exchange_.buffers().trim();
    return;
  }
  for (auto& count : tokens_) count += tokens;
  for (const auto p : schedule_.sends_at(step_)) send(p);
  for (const auto p : schedule_.applies_at(step_)) apply(p, step_rule_, Waiting::stall);
}

void OuterLoop::finish() {
  apply_all_in_flight(Waiting::finish);
  if (step_ <= schedule_.warmup_steps() || !final_sync_) return;
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) send(p);
  // Nobody trains on from here: the local parameters become the global ones.
  auto rule = step_rule_;
  rule.alpha = 0;
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) apply(p, rule, Waiting::finish);
}

void OuterLoop::apply_all_in_flight(Waiting why) {
  while (!in_flight_.empty()) apply(in_flight_.front().fragment, step_rule_, why);
}

// ---- one fragment ----

void OuterLoop::send(FragmentId p) {
  const auto round = fragments_[p].round + 1;
  const Trace::Scope scope(trace_, Trace::Row::outer, "encode", round_args(p, round));
  if (gradient_observer_) {
    const auto& fragment = layout_.fragment(p);
    const auto global = state_->global(fragment);
    gradient_observer_(p, step_, global, state_->local().read(fragment));
  }
  in_flight_.push_back({p, round, step_, Trace::Clock::now(), std::nullopt});
  const auto weight = std::exchange(tokens_[p], 0);
  state_->encode(p,
                 {.codec = codecs_.of(round), .round = round, .carried = carried_, .noise_seed = noise_seed_},
                 exchange_.buffers(),
                 // At once: the next chunk is encoded while this one travels.
                 [&](EncodedChunk encoded) { contribute(round, weight, std::move(encoded)); });
}

void OuterLoop::contribute(protocol::Round round, std::uint64_t weight, EncodedChunk encoded) {
  if (encoded.bad_element) {
    const bool warmup = round <= codecs_.warmup_rounds;
    throw Error(ErrorKind::divergence,
                std::string(warmup ? "a gradient" : "an outer gradient") +
                    " is not finite, or too large for its codec, at element " +
                    std::to_string(layout_.place_in_fragment(encoded.chunk) + *encoded.bad_element) +
                    " of fragment " + std::to_string(layout_.fragment_of(encoded.chunk)) + " at step " +
                    std::to_string(warmup ? step_ + 1 : step_));
  }
  // The last sync may come right after a send; what it carries counts all the same.
  exchange_.contribute(encoded.chunk, round, std::move(encoded.bytes), std::max<std::uint64_t>(weight, 1));
}

void OuterLoop::apply(FragmentId p, const quant::OuterStep& rule, Waiting why) {
  const auto at = std::ranges::find(in_flight_, p, &InFlight::fragment);
  if (at == in_flight_.end()) return;  // the warm-up ended less than tau steps ago: nothing was sent
  auto flight = std::move(*at);
  in_flight_.erase(at);
  fetch(flight, why);

  const Trace::Scope scope(trace_, Trace::Row::outer, "apply", round_args(p, flight.round));
  if (const auto bad = state_->apply(p, codecs_.of(flight.round), flight.result->chunks, rule)) {
    refuse_result(flight, *bad);
  }
  record(flight);
}

double& OuterLoop::waited(Waiting why) {
  if (why == Waiting::warmup) return stats_.warmup_wait_seconds;
  if (why == Waiting::finish) return stats_.finish_seconds;
  return stats_.stall_seconds;
}

void OuterLoop::fetch(InFlight& flight, Waiting why) {
  if (flight.result) return;
  const auto begin = Trace::Clock::now();
  const Trace::Scope scope(trace_, Trace::Row::train, "outer_wait",
                           round_args(flight.fragment, flight.round));
  while (!flight.result) flight.result = exchange_.wait(flight.fragment, flight.round);
  waited(why) += seconds_since(begin);
}

void OuterLoop::refuse_result(const InFlight& flight, ChunkId chunk) const {
  throw Error(ErrorKind::divergence, "the result of chunk " + std::to_string(chunk) + " in round " +
                                         std::to_string(flight.round) + " does not decode");
}

/// Extends the fragment's hash chain: h_r = hash(h_{r-1}, p, r, result bytes in chunk order).
void OuterLoop::record(const InFlight& flight) {
  auto& state = fragments_[flight.fragment];
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(state.chain.bytes))).update(flight.fragment).update(flight.round);
  for (const auto& bytes : flight.result->chunks) hasher.update(std::span(*bytes));
  state = {flight.round, hasher.finish()};
  ++stats_.rounds;
  trace_.async(Trace::Row::outer, "fragment in flight", (std::uint64_t{flight.fragment} << 32) | flight.round,
               flight.sent, Trace::Clock::now(), round_args(flight.fragment, flight.round));
  exchange_.applied(flight.fragment, flight.round, state.chain);
}

// ---- what others look at ----

std::span<const float> OuterLoop::global_parameters() {
  // In the synchronous phase local and global parameters are one.
  if (step_ < schedule_.warmup_steps()) state_->take_local();
  return state_->global({0, layout_.buffer_size()});
}

Digest OuterLoop::global_hash() { return hash_of(std::as_bytes(global_parameters())); }

// ---- checkpoints ----

namespace {

/// Everything that decides what encoded bytes mean.
std::string description_of(const quant::CodecSpec& spec) {
  return std::string(to_string(spec.kind)) + " block " + std::to_string(spec.block) + " scale " +
         std::string(to_string(spec.scale)) + " top_k " + std::to_string(spec.top_k) + " numerics " +
         std::to_string(protocol::numerics_version);
}

struct SavedFlight {
  FragmentId fragment = 0;
  protocol::Round round = 0;
  std::uint64_t sent_step = 0;
  std::string codec;  ///< description_of it
  std::vector<Bytes> results;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, round, sent_step, codec, results);
  }
};

struct SavedState {
  std::uint64_t step = 0;
  std::vector<protocol::FragmentState> fragments;
  std::vector<std::uint64_t> tokens;
  bool error_feedback = false;
  OuterState::Vectors vectors;
  AlignedVector<float> gradient_residual;
  std::vector<SavedFlight> in_flight;
  Reducer::Residuals owner_residuals;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step, fragments, tokens, error_feedback, vectors, gradient_residual, in_flight, owner_residuals);
  }
};

/// Why a saved round cannot be in flight in this run; null when it can.
const char* problem_of(const SavedFlight& flight, const SavedState& state, const FragmentLayout& layout,
                       const Schedule& schedule, const protocol::CodecPlan& codecs) {
  if (flight.fragment >= layout.fragment_count()) return "of another layout";
  const auto chunks = layout.chunks_of(flight.fragment);
  if (flight.results.size() != chunks.size()) return "of another layout";
  if (flight.round != state.fragments[flight.fragment].round + 1)
    return "that does not follow the last one applied";
  const bool ever_applied = flight.sent_step <= state.step &&
                            schedule.sends(flight.fragment, flight.sent_step) &&
                            flight.sent_step + schedule.sync_delay() > state.step;
  if (!ever_applied) {
    return "that these settings never apply; "
           "outer.sync_every, sync_delay, num_fragments and warmup_steps must be as they were";
  }
  if (flight.codec != description_of(codecs.of(flight.round)))
    return "of another codec; outer.codec and its settings must be as they were";
  for (ChunkId k = 0; k < chunks.size(); ++k) {
    if (flight.results[k].size() !=
        quant::encoded_size(codecs.of(flight.round), layout.chunk(chunks.first + k).size))
      return "cut short";
  }
  return nullptr;
}

}  // namespace

Bytes OuterLoop::save() {
  SavedState state;
  for (auto& flight : in_flight_) {
    fetch(flight, Waiting::save);
    auto& saved = state.in_flight.emplace_back(SavedFlight{
        flight.fragment, flight.round, flight.sent_step, description_of(codecs_.of(flight.round)), {}});
    for (const auto& bytes : flight.result->chunks) saved.results.push_back(*bytes);
  }
  state.step = step_;
  state.fragments = fragments_;
  state.tokens = tokens_;
  state.error_feedback = codecs_.error_feedback;
  if (synchronous()) state_->take_local();
  state.vectors = state_->save();
  state.gradient_residual = gradient_residual_;
  state.owner_residuals = exchange_.reducer().residuals();
  return to_bytes(state);
}

void OuterLoop::restore(std::span<const std::byte> bytes) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorKind::data, "checkpoint: the outer loop's state " + what);
  };
  SavedState state;
  try {
    state = from_bytes<SavedState>(bytes);
  } catch (const Error&) {
    refuse("is cut short or not one");
  }
  const auto n = layout_.buffer_size();
  const bool in_warmup = state.step < schedule_.warmup_steps();
  if (state.fragments.size() != fragments_.size() || state.tokens.size() != tokens_.size() ||
      state.error_feedback != codecs_.error_feedback || !fits(state.vectors, layout_) ||
      state.gradient_residual.size() != (in_warmup ? n : 0)) {
    refuse("is of another layout or other settings");
  }
  std::deque<InFlight> in_flight;
  for (auto& saved : state.in_flight) {
    if (const auto* problem = problem_of(saved, state, layout_, schedule_, codecs_)) {
      refuse(std::string("has a round in flight ") + problem);
    }
    if (std::ranges::find(in_flight, saved.fragment, &InFlight::fragment) != in_flight.end()) {
      refuse("has two rounds of one fragment in flight");
    }
    RoundResult result;
    for (auto& chunk : saved.results)
      result.chunks.push_back(std::make_shared<const Bytes>(std::move(chunk)));
    result.included.assign(result.chunks.size(), true);
    in_flight.push_back(
        {saved.fragment, saved.round, saved.sent_step, Trace::Clock::now(), std::move(result)});
  }
  exchange_.reducer().restore(std::move(state.owner_residuals));
  step_ = state.step;
  fragments_ = std::move(state.fragments);
  tokens_ = std::move(state.tokens);
  state_->restore(std::move(state.vectors));
  gradient_residual_ = std::move(state.gradient_residual);
  in_flight_ = std::move(in_flight);
}

}  // namespace isthmus::outer_sync
