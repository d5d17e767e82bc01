// The outer loop's state as a whole: to a checkpoint and from it, to newcomers and from those who have it,
// and its figures.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "isthmus/base/archive.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/outer_sync/log/chain.h"
#include "isthmus/outer_sync/protocol/audits.h"

namespace isthmus::outer_sync {
namespace {

/// Everything that decides what encoded bytes mean.
std::string description_of(const quant::CodecSpec& spec) {
  return std::string(to_string(spec.kind)) + " block " + std::to_string(spec.block) + " scale " +
         std::string(to_string(spec.scale)) + " top_k " + std::to_string(spec.top_k) + " numerics " +
         std::to_string(protocol::numerics_version);
}

/// What has become of this replica's contribution to a chunk.
enum class Fate : std::uint8_t { left_out, included, rejected };

std::vector<std::uint8_t> fates(const RoundResult& result) {
  std::vector<std::uint8_t> out;
  for (std::size_t i = 0; i < result.included.size(); ++i) {
    const bool rejected = !result.rejected.empty() && result.rejected[i];
    const auto fate = rejected ? Fate::rejected : result.included[i] ? Fate::included : Fate::left_out;
    out.push_back(static_cast<std::uint8_t>(fate));
  }
  return out;
}

struct SavedFlight {
  FragmentId fragment = 0;
  protocol::Round round = 0;
  std::uint64_t sent_step = 0;
  std::string codec;  ///< description_of it
  std::vector<Bytes> results;
  std::vector<Bytes> own;              ///< in chunk order; empty where they are of no use any more
  std::vector<std::uint8_t> included;  ///< Fate of each of them
  bool ahead = false;
  std::uint64_t weight = 0;
  SampleSet samples;                  ///< behind it
  std::vector<SampleRange> together;  ///< of all in its result
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, round, sent_step, codec, results, own, included, ahead, weight, samples, together);
  }
};

struct AgreedState {
  std::uint64_t step = 0;
  std::vector<protocol::FragmentState> fragments;
  AlignedVector<float> global, velocity;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step, fragments, global, velocity);
  }
};

struct OwnState {
  std::vector<std::uint64_t> tokens;
  std::vector<SampleSet> samples;
  bool error_feedback = false;
  Reducer::Residuals residuals;
  AlignedVector<float> ahead, ahead_velocity;
  AlignedVector<float> gradient_residual;
  std::vector<SavedFlight> in_flight;
  Reducer::Residuals owner_residuals;
  methods::Pace pace;
  std::uint64_t owed = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(tokens, samples, error_feedback, residuals, ahead, ahead_velocity, gradient_residual, in_flight,
       owner_residuals, pace, owed);
  }
};

[[noreturn]] void refuse_state(const std::string& what) {
  throw Error(ErrorKind::data, "checkpoint: the outer loop's state " + what);
}

template <class State>
State saved_state(std::span<const std::byte> bytes) {
  try {
    return from_bytes<State>(bytes);
  } catch (const Error&) {
    refuse_state("is cut short or not one");
  }
}

/// Whether these are a fragment's chunks in this codec, by their lengths; `may_lack` some.
bool are_chunks(const std::vector<Bytes>& chunks, FragmentId p, const FragmentLayout& layout,
                const quant::CodecSpec& codec, bool may_lack) {
  const auto span = layout.chunks_of(p);
  if (chunks.size() != span.size()) return may_lack && chunks.empty();
  for (ChunkId i = 0; i < span.size(); ++i) {
    if (may_lack && chunks[i].empty()) continue;
    if (chunks[i].size() != quant::encoded_size(codec, layout.chunk(span.first + i).size)) return false;
  }
  return true;
}

/// Why a saved round cannot be in flight in this run; null when it can.
/// `earlier` is how many rounds of its fragment are in flight before it.
const char* problem_of(const SavedFlight& flight, std::uint64_t earlier, const AgreedState& state,
                       const FragmentLayout& layout, const Schedule& schedule,
                       const protocol::CodecPlan& codecs, bool carries) {
  if (flight.fragment >= layout.fragment_count()) return "of another layout";
  if (flight.round != state.fragments[flight.fragment].round + 1 + earlier)
    return "that does not follow the last one applied";
  const bool ever_applied = flight.sent_step <= state.step &&
                            schedule.sends(flight.fragment, flight.sent_step) &&
                            schedule.rounds_sent(flight.fragment, flight.sent_step) == flight.round;
  if (!ever_applied) {
    return "that these settings never apply; "
           "outer.sync_every, sync_delay, num_fragments and warmup_steps must be as they were";
  }
  const auto& codec = codecs.of(flight.round);
  if (flight.codec != description_of(codec))
    return "of another codec; outer.codec and its settings must be as they were";
  if (!are_chunks(flight.results, flight.fragment, layout, codec, false)) return "cut short";
  if (!are_chunks(flight.own, flight.fragment, layout, codec, true)) return "cut short";
  if (flight.included.size() != flight.results.size()) return "cut short";
  if (std::ranges::any_of(flight.included,
                          [](auto fate) { return fate > static_cast<std::uint8_t>(Fate::rejected); }))
    return "that has come to nothing known";
  constexpr auto* lacks_own = "without what was sent in it; outer.merge must be as it was";
  if (carries && flight.own.empty()) return lacks_own;
  for (std::size_t i = 0; i < flight.own.size(); ++i) {
    const auto& own = flight.own[i];
    const auto chunk = layout.chunks_of(flight.fragment).first + static_cast<ChunkId>(i);
    if (own.empty() && (carries || flight.included[i] == 0)) return lacks_own;
    if (!own.empty() && !quant::valid(codec, own, layout.chunk(chunk).size)) return "that does not decode";
  }
  return nullptr;
}

std::vector<Bytes> copies(std::span<const protocol::SharedBytes> chunks) {
  std::vector<Bytes> out;
  for (const auto& bytes : chunks) out.push_back(bytes ? *bytes : Bytes());
  return out;
}

std::vector<protocol::SharedBytes> shared(std::vector<Bytes> chunks) {
  std::vector<protocol::SharedBytes> out;
  out.reserve(chunks.size());
  for (auto& bytes : chunks)
    out.push_back(bytes.empty() ? nullptr : std::make_shared<const Bytes>(std::move(bytes)));
  return out;
}

}  // namespace

/// Agreed steps that one inner step completes, where a replica is eight times slower than the others, and may
/// have begun to be so while its clock was frozen.
constexpr std::uint64_t max_owed = 64;

bool OuterLoop::await_results() {
  if (commits_ && !complete_step()) return false;
  return std::ranges::all_of(in_flight_, [&](InFlight& flight) { return fetch(flight, Waiting::save); });
}

/// What `AgreedState` and `OwnState` read, without a copy of the large parts in between.
std::optional<SavedOuterLoop> OuterLoop::save(SavedOuterLoop memory) {
  if (!await_results()) return std::nullopt;
  std::vector<SavedFlight> in_flight;
  for (const auto& flight : in_flight_) {
    in_flight.push_back({flight.fragment, flight.round, schedule_.send_step(flight.fragment, flight.round),
                         description_of(codecs_.of(flight.round)), copies(flight.result->chunks),
                         copies(flight.own), fates(*flight.result), flight.ahead, flight.weight,
                         flight.samples, flight.result->samples});
  }
  if (synchronous()) state_->take_local();
  BinaryWriter agreed(std::move(memory.agreed)), own(std::move(memory.own));
  agreed(step_, fragments_);
  state_->save_agreed(agreed);
  own(tokens_, samples_, codecs_.error_feedback);
  state_->save_own(own);
  own(gradient_residual_, in_flight, exchange_.reducer().residuals(), pace_, owed_);
  return SavedOuterLoop{agreed.take(), own.take()};
}

void OuterLoop::restore(std::span<const std::byte> agreed, std::span<const std::byte> own,
                        const protocol::Settings& settings) {
  auto state = saved_state<AgreedState>(agreed);
  auto mine = saved_state<OwnState>(own);
  OuterState::Vectors vectors{.global = std::move(state.global),
                              .velocity = std::move(state.velocity),
                              .residuals = std::move(mine.residuals),
                              .ahead = std::move(mine.ahead),
                              .ahead_velocity = std::move(mine.ahead_velocity)};
  plan(settings);
  std::ranges::fill(ruled_, 0);
  std::ranges::fill(figures_, FragmentFigures());
  const auto n = layout_.buffer_size();
  const bool in_warmup = state.step < schedule_.warmup_steps();
  if (state.fragments.size() != fragments_.size() || mine.tokens.size() != tokens_.size() ||
      mine.samples.size() != samples_.size() || mine.error_feedback != codecs_.error_feedback ||
      !fits(vectors, layout_, eager_) || mine.gradient_residual.size() != (in_warmup ? n : 0) ||
      !mine.pace.sound() || (paced_by_time_ ? mine.owed > max_owed : mine.owed > 0)) {
    refuse_state("is of another layout or other settings");
  }
  std::list<InFlight> in_flight;
  for (auto& saved : mine.in_flight) {
    const auto earlier =
        static_cast<std::uint64_t>(std::ranges::count(in_flight, saved.fragment, &InFlight::fragment));
    if (const auto* problem = problem_of(saved, earlier, state, layout_, schedule_, codecs_, carries_)) {
      refuse_state(std::string("has a round in flight ") + problem);
    }
    if (earlier == max_in_flight()) refuse_state("has too many rounds of one fragment in flight");
    RoundResult result{.chunks = shared(std::move(saved.results)), .included = {}};
    auto contributed = shared(std::move(saved.own));
    for (const auto fate : saved.included) {
      result.included.push_back(fate == static_cast<std::uint8_t>(Fate::included));
      result.rejected.push_back(fate == static_cast<std::uint8_t>(Fate::rejected));
    }
    in_flight.push_back({saved.fragment, saved.round, Trace::Clock::now(), std::move(contributed),
                         std::move(result), saved.ahead});
    in_flight.back().weight = saved.weight;
    in_flight.back().samples = std::move(saved.samples);
    in_flight.back().result->samples = std::move(saved.together);
  }
  if (state.step > schedule_.warmup_steps() && !rounds_fit(state.fragments, in_flight, state.step)) {
    refuse_state(
        "has rounds in flight or applied that are not of its step; "
        "outer.sync_every, num_fragments and warmup_steps must be as they were");
  }
  exchange_.reducer().restore(std::move(mine.owner_residuals));
  step_ = state.step;
  fragments_ = std::move(state.fragments);
  tokens_ = std::move(mine.tokens);
  samples_ = std::move(mine.samples);
  state_->restore(std::move(vectors));
  gradient_residual_ = std::move(mine.gradient_residual);
  in_flight_ = std::move(in_flight);
  if (paced_by_time_) pace_ = mine.pace;
  owed_ = mine.owed;
  frozen_ = is_late();
  commits_ = !frozen_;
  if (!synchronous()) offer_state();
}

AlignedVector<float> saved_global_parameters(std::span<const std::byte> agreed,
                                             const FragmentLayout& layout) {
  auto global = saved_state<AgreedState>(agreed).global;
  if (global.size() != layout.buffer_size()) refuse_state("is of another layout");
  return global;
}

/// Whether the rounds in flight are those that were sent by that step and are not applied. (Past the last
/// step the final sync has applied one more.)
bool OuterLoop::rounds_fit(const std::vector<protocol::FragmentState>& fragments,
                           const std::list<InFlight>& in_flight, std::uint64_t step) const {
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    const auto sent = schedule_.rounds_sent(p, step);
    const auto flying = static_cast<std::uint64_t>(std::ranges::count(in_flight, p, &InFlight::fragment));
    const auto applied = fragments[p].round;
    if (applied == sent + 1 ? flying != 0 : applied + flying != sent) return false;
  }
  return true;
}

/// A result that was due by now is not in.
bool OuterLoop::is_late() const {
  return std::ranges::any_of(in_flight_, [&](const InFlight& flight) { return is_due(flight.fragment); });
}

// ---- members that come and go ----

FragmentSnapshot OuterLoop::snapshot(FragmentId p, bool with_moments) {
  assert(!synchronous() && p < layout_.fragment_count());
  const auto copy = [](std::span<const float> values) {
    return std::make_shared<const AlignedVector<float>>(values.begin(), values.end());
  };
  const auto& fragment = layout_.fragment(p);
  FragmentSnapshot snapshot{
      .fragment = p, .state = fragments_[p], .theta = copy(state_->global(fragment)), .velocity = nullptr};
  snapshot.velocity = copy(state_->velocity(fragment));
  if (!with_moments || moments_ == nullptr) return snapshot;
  snapshot.first_moment = copy(moments_->first_moment(fragment));
  snapshot.second_moment = copy(moments_->second_moment(fragment));
  snapshot.inner_steps = moments_->steps();
  return snapshot;
}

void OuterLoop::install(const FragmentSnapshot& snapshot) {
  log_.reset();  // it begins anew with what comes now
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::network,
                "the snapshot of fragment " + std::to_string(snapshot.fragment) + " " + what);
  };
  const auto p = snapshot.fragment;
  if (p >= layout_.fragment_count())
    refuse("is of none: there are " + std::to_string(layout_.fragment_count()));
  const auto size = layout_.fragment(p).size;
  const bool has_moments = moments_ != nullptr && (snapshot.first_moment || snapshot.second_moment);
  const auto check = [&](const std::shared_ptr<const AlignedVector<float>>& values) {
    if (!values || values->size() != size) {
      refuse("has " + std::to_string(values ? values->size() : 0) + " elements; expected " +
             std::to_string(size));
    }
    if (!std::ranges::all_of(*values, [](float x) { return std::isfinite(x); }))
      refuse("has a value that is not finite");
  };
  check(snapshot.theta);
  check(snapshot.velocity);
  if (has_moments) {
    check(snapshot.first_moment);
    check(snapshot.second_moment);
    if (std::ranges::any_of(*snapshot.second_moment, [](float x) { return x < 0; }))
      refuse("has a mean square that is negative");
  }
  if (snapshot.state.round < codecs_.warmup_rounds) {
    refuse("is of round " + std::to_string(snapshot.state.round) +
           ", in the warm-up, which ends with round " + std::to_string(codecs_.warmup_rounds));
  }
  state_->install(p, *snapshot.theta, *snapshot.velocity);
  fragments_[p] = snapshot.state;
  figures_[p] = {};
  ruled_[p] = 0;  // whatever was done to it before
  // The global parameters are past the warm-up, and no longer the local ones.
  step_ = std::max(step_, schedule_.warmup_steps());
  gradient_residual_ = {};
  moment_steps_[p].reset();
  if (!has_moments) return;
  moments_->set_moments(layout_.fragment(p), *snapshot.first_moment, *snapshot.second_moment);
  moment_steps_[p] = snapshot.inner_steps;
}

/// One count is for all moments, which may be of several members. The least of theirs is the safe one: a mean
/// square that is taken for younger than it is makes smaller steps, never larger ones.
void OuterLoop::count_moment_steps() {
  std::optional<std::uint64_t> least;
  for (auto& steps : moment_steps_) {
    if (steps) least = std::min(least.value_or(*steps), *steps);
    steps.reset();
  }
  if (least) moments_->set_steps(*least);
}

void OuterLoop::follow(FragmentId p, std::span<const protocol::SharedBytes> results) {
  if (p >= layout_.fragment_count() || results.size() != layout_.chunks_of(p).size()) {
    throw Error(ErrorKind::network, "a round of fragment " + std::to_string(p) + " with " +
                                        std::to_string(results.size()) + " chunks is not of this layout");
  }
  const auto round = fragments_[p].round + 1;
  auto rule = rule_of(p, round);
  ruled_[p] = schedule_.send_step(p, round);
  rule.step.merge = quant::Merge::mix;
  rule.step.alpha = 1;  // the local parameters stay as they are
  if (is_audited(p, round)) measure(p, round, results, rule);
  if (const auto bad = state_->apply(p, codecs_.of(round), results, rule)) refuse_result(round, *bad);
  extend_chain(p, results, {});
}

/// Rounds whose state is read anyway: for its digest, and for the figures of the outer step.
bool OuterLoop::is_audited(FragmentId p, protocol::Round round) const {
  return round > codecs_.warmup_rounds && protocol::is_audited(p, round);
}

/// The outer step to come.
void OuterLoop::measure(FragmentId p, protocol::Round round, std::span<const protocol::SharedBytes> results,
                        const methods::OuterRule& rule) {
  figures_[p] = {.round = round};
  if (const auto products = state_->products(p, codecs_.of(round), results))
    figures_[p].step = figures_of(*products, rule);
  const auto& step = figures_[p].step;
  if (!step || !step->has_momentum) return;
  ++stats_.measured;
  stats_.gains += step->gain;
  stats_.correlations += step->correlation;
}

void OuterLoop::begin_at(std::uint64_t step) {
  if (auto now = exchange_.settings()) {
    change_to(*now, 0);
    taken_ = std::move(now);
  }
  bool fits = step >= schedule_.warmup_steps();
  for (FragmentId p = 0; fits && p < layout_.fragment_count(); ++p) {
    const auto round = fragments_[p].round;
    const auto sent = schedule_.rounds_sent(p, step);
    // Beside those in flight there may be as many decided as others keep the results of; those come here.
    fits = round <= sent + 1 && sent <= round + protocol::Member::max_kept + max_in_flight();
  }
  if (!fits) {
    std::string rounds;
    for (const auto& fragment : fragments_) rounds.append(" ").append(std::to_string(fragment.round));
    throw Error(ErrorKind::network, "fragments at rounds" + rounds + " are not of step " +
                                        std::to_string(step) +
                                        " of this run; a snapshot is too old, or not its");
  }
  state_->begin_from_global();
  count_moment_steps();
  gradient_residual_ = {};
  std::ranges::fill(tokens_, 0);
  std::ranges::fill(samples_, SampleSet());
  step_ = step;
  owed_ = 0;
  pace_.cut_short();
  in_flight_.clear();
  // Rounds that are in flight wait for everybody in the view. What is sent to them is nothing yet, so it
  // weighs nothing.
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) send_what_is_due(p);
  frozen_ = is_late();
  commits_ = !frozen_;
  local_steps_ = 0;
  offer_state();
}

}  // namespace isthmus::outer_sync
