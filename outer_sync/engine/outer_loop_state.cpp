// The outer loop's state as a whole: saved to and restored from checkpoints, sent to and installed from other
// members; and its figures.

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

/// All settings that determine how encoded bytes are decoded.
std::string description_of(const quant::CodecSpec& spec) {
  return std::string(to_string(spec.kind)) + " block " + std::to_string(spec.block) + " scale " +
         std::string(to_string(spec.scale)) + " top_k " + std::to_string(spec.top_k) + " numerics " +
         std::to_string(protocol::numerics_version);
}

/// The outcome of this replica's contribution to a chunk.
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
  std::string codec;  ///< description_of its codec
  std::vector<Bytes> results;
  std::vector<Bytes> own;              ///< in chunk order; empty if no longer needed
  std::vector<std::uint8_t> included;  ///< Fate of each of this replica's chunks
  bool ahead = false;
  std::uint64_t weight = 0;
  SampleSet samples;                  ///< behind the contribution
  std::vector<SampleRange> together;  ///< samples behind all contributions in its result
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
    refuse_state("is incomplete or damaged");
  }
}

/// Whether these are a fragment's chunks in this codec, judged by their lengths. With `may_lack`, chunks may
/// be missing.
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

/// Why a saved round cannot be in flight in this run; null if it can. `earlier`: number of older rounds of
/// its fragment in flight.
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
    return "that these settings never apply; outer.sync_every, sync_delay, num_fragments and warmup_steps "
           "must be unchanged";
  }
  const auto& codec = codecs.of(flight.round);
  if (flight.codec != description_of(codec))
    return "of another codec; outer.codec and its settings must be unchanged";
  if (!are_chunks(flight.results, flight.fragment, layout, codec, false)) return "cut short";
  if (!are_chunks(flight.own, flight.fragment, layout, codec, true)) return "cut short";
  if (flight.included.size() != flight.results.size()) return "cut short";
  if (std::ranges::any_of(flight.included,
                          [](auto fate) { return fate > static_cast<std::uint8_t>(Fate::rejected); }))
    return "with an unknown outcome";
  constexpr auto* lacks_own = "without this replica's contribution; outer.merge must be unchanged";
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

/// Limit of agreed steps completed and not made yet: a replica eight times slower than the others completes
/// eight per inner step, and it may have become that slow while its agreed step was frozen.
constexpr std::uint64_t max_owed = 64;

bool OuterLoop::await_results() {
  if (commits_ && !complete_step()) return false;
  return std::ranges::all_of(in_flight_, [&](InFlight& flight) { return fetch(flight, Waiting::save); });
}

/// Writes what `AgreedState` and `OwnState` read, without copying the large parts in between.
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
    refuse_state("has a different layout or different settings");
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
        "has rounds in flight or applied that do not match its step; outer.sync_every, num_fragments and "
        "warmup_steps must be unchanged");
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

/// Whether the rounds in flight are exactly those sent by `step` and not applied. (After the last step the
/// final sync has applied one more.)
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

/// Whether a result that was due by now is missing.
bool OuterLoop::is_late() const {
  return std::ranges::any_of(in_flight_, [&](const InFlight& flight) { return is_due(flight.fragment); });
}

// ---- joining and leaving members ----

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
  log_.reset();  // the log starts anew with this state
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::network,
                "the snapshot of fragment " + std::to_string(snapshot.fragment) + " " + what);
  };
  const auto p = snapshot.fragment;
  if (p >= layout_.fragment_count())
    refuse("is invalid: fragments of this run are numbered below " +
           std::to_string(layout_.fragment_count()));
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
      refuse("has a negative second moment");
  }
  if (snapshot.state.round < codecs_.warmup_rounds) {
    refuse("is of round " + std::to_string(snapshot.state.round) +
           ", in the warm-up, which ends with round " + std::to_string(codecs_.warmup_rounds));
  }
  state_->install(p, *snapshot.theta, *snapshot.velocity);
  fragments_[p] = snapshot.state;
  figures_[p] = {};
  ruled_[p] = 0;  // rounds applied to the old state no longer matter
  // The global parameters are past the warm-up and differ from the local ones.
  step_ = std::max(step_, schedule_.warmup_steps());
  gradient_residual_ = {};
  moment_steps_[p].reset();
  if (!has_moments) return;
  moments_->set_moments(layout_.fragment(p), *snapshot.first_moment, *snapshot.second_moment);
  moment_steps_[p] = snapshot.inner_steps;
}

/// All moments share one step count, although they may come from several members. The smallest count is safe:
/// a second moment taken for younger than it is makes steps smaller, never larger.
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
                                        std::to_string(results.size()) + " chunks does not fit this layout");
  }
  const auto round = fragments_[p].round + 1;
  auto rule = rule_of(p, round);
  ruled_[p] = schedule_.send_step(p, round);
  rule.step.merge = quant::Merge::mix;
  rule.step.alpha = 1;  // leaves the local parameters unchanged
  if (is_audited(p, round)) measure(p, round, results, rule);
  if (const auto bad = state_->apply(p, codecs_.of(round), results, rule)) refuse_result(round, *bad);
  extend_chain(p, results, {});
}

/// Audited rounds read the state for its digest, and so get the figures of the outer step as well.
bool OuterLoop::is_audited(FragmentId p, protocol::Round round) const {
  return round > codecs_.warmup_rounds && protocol::is_audited(p, round);
}

/// Computes the figures of the outer step about to be made.
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
    // In addition to the rounds in flight, as many rounds may be decided as members keep results of; those
    // results arrive later.
    fits = round <= sent + 1 && sent <= round + protocol::Member::max_kept + max_in_flight();
  }
  if (!fits) {
    std::string rounds;
    for (const auto& fragment : fragments_) rounds.append(" ").append(std::to_string(fragment.round));
    throw Error(ErrorKind::network, "fragments at rounds" + rounds + " do not match step " +
                                        std::to_string(step) +
                                        " of this run; a snapshot is too old or from another run");
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
  // Rounds in flight wait for every trainer in the view. This replica has trained nothing yet, so its
  // contributions to them have weight 0.
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) send_what_is_due(p);
  frozen_ = is_late();
  commits_ = !frozen_;
  local_steps_ = 0;
  offer_state();
}

}  // namespace isthmus::outer_sync
