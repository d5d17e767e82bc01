// The outer loop's state as a whole: saved to and restored from checkpoints, sent to and installed from other
// members.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine/saved_round.h"
#include "isthmus/base/archive.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/engine/outer_loop.h"

namespace isthmus::outer_sync {
namespace {

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
  UnsentWork unsent;
  bool error_feedback = false;
  Reducer::Residuals residuals;
  AlignedVector<float> gradient_residual;
  std::vector<SavedRound> in_flight;
  Reducer::Residuals owner_residuals;
  AgreedClock::Saved clock;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(unsent, error_feedback, residuals, gradient_residual, in_flight, owner_residuals, clock);
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

}  // namespace

bool OuterLoop::await_results() {
  if (clock_.rounds_commit() && !complete_step()) return false;
  return std::ranges::all_of(in_flight_.all(),
                             [&](InFlight& flight) { return fetch(flight, Waiting::save); });
}

/// Writes what `AgreedState` and `OwnState` read, without copying the large parts in between.
std::optional<SavedOuterLoop> OuterLoop::save(SavedOuterLoop memory) {
  if (!await_results()) return std::nullopt;
  std::vector<SavedRound> in_flight;
  for (const auto& flight : in_flight_.all()) {
    in_flight.push_back(
        saved_round(flight, schedule().send_step(flight.fragment, flight.round), codecs_.of(flight.round)));
  }
  if (synchronous()) state_->take_local();
  BinaryWriter agreed(std::move(memory.agreed)), own(std::move(memory.own));
  agreed(step(), fragments_);
  state_->save_agreed(agreed);
  own(unsent_, codecs_.error_feedback);
  state_->save_own(own);
  own(gradient_residual_, in_flight, exchange_.reducer().residuals(), clock_.saved());
  return SavedOuterLoop{agreed.take(), own.take()};
}

void OuterLoop::restore(std::span<const std::byte> agreed, std::span<const std::byte> own,
                        const protocol::Settings& settings) {
  auto state = saved_state<AgreedState>(agreed);
  auto mine = saved_state<OwnState>(own);
  OuterState::Vectors vectors{.global = std::move(state.global),
                              .velocity = std::move(state.velocity),
                              .residuals = std::move(mine.residuals)};
  live_.restore(settings);
  std::ranges::fill(figures_, FragmentFigures());
  const auto n = layout_.buffer_size();
  const auto warmup_steps = schedule().warmup_steps();
  const bool in_warmup = state.step < warmup_steps;
  if (state.fragments.size() != fragments_.size() || !mine.unsent.fits(layout_.fragment_count()) ||
      mine.error_feedback != codecs_.error_feedback || !fits(vectors, layout_) ||
      mine.gradient_residual.size() != (in_warmup ? n : 0) ||
      !clock_.fits(mine.clock, in_warmup ? 0 : state.step - warmup_steps)) {
    refuse_state("has a different layout or different settings");
  }
  RoundsInFlight in_flight;
  const RestoredRun run{layout_, schedule(), codecs_, state.fragments, state.step, carries()};
  for (auto& saved : mine.in_flight) {
    const auto earlier = in_flight.count(saved.fragment);
    if (const auto* problem = problem_of(saved, earlier, run)) {
      refuse_state(std::string("has a round in flight ") + problem);
    }
    if (earlier > 0) refuse_state("has too many rounds of one fragment in flight");
    in_flight.add(outer_sync::in_flight(std::move(saved)));
  }
  if (state.step > warmup_steps && !in_flight.fit(state.fragments, schedule(), state.step)) {
    refuse_state(
        "has rounds in flight or applied that do not match its step; outer.sync_every, num_fragments and "
        "warmup_steps must be unchanged");
  }
  exchange_.reducer().restore(std::move(mine.owner_residuals));
  fragments_ = std::move(state.fragments);
  unsent_ = std::move(mine.unsent);
  state_->restore(vectors);
  gradient_residual_ = std::move(mine.gradient_residual);
  in_flight_ = std::move(in_flight);
  clock_.restore(mine.clock, state.step);
  clock_.begin(in_flight_.is_late(schedule(), step()));
  if (!synchronous()) offer_state();
}

namespace {

bool is_same_work(const SavedRound& saved, const InFlight& flight) {
  return saved.fragment == flight.fragment && saved.round == flight.round && saved.weight == flight.weight &&
         saved.samples == flight.samples;
}

/// A contribution that its result contains is not kept, unless the merge needs it.
bool has_same_bytes(const SavedRound& saved, const InFlight& flight) {
  if (!saved.own.empty() && saved.own.size() != flight.own.size()) return false;
  for (std::size_t i = 0; i < saved.own.size(); ++i) {
    if (!saved.own[i].empty() && (!flight.own[i] || saved.own[i] != *flight.own[i])) return false;
  }
  return true;
}

}  // namespace

OuterLoop::Differences OuterLoop::differences_from(std::span<const std::byte> own, const Outcome& outcome) {
  const auto other = saved_state<OwnState>(own);
  Differences out;
  BinaryWriter residuals;
  state_->save_own(residuals);
  if (from_bytes<Reducer::Residuals>(residuals.take()) != other.residuals)
    out.values.emplace_back("residuals of error feedback");
  if (other.unsent != unsent_) out.exact.emplace_back("work without a contribution");
  if (!std::ranges::equal(other.in_flight, in_flight_.all(), is_same_work)) {
    out.exact.emplace_back("rounds in flight");
    return out;
  }
  if (!std::ranges::equal(other.in_flight, in_flight_.all(), has_same_bytes))
    out.values.emplace_back("contributions in flight");
  const auto has_other_outcome = [&](const SavedRound& saved) {
    const auto result = outcome(saved.fragment, saved.round);
    return result && saved.included != fates_of(*result);
  };
  if (std::ranges::any_of(other.in_flight, has_other_outcome))
    out.exact.emplace_back("outcomes of rounds in flight");
  return out;
}

std::vector<protocol::DecidedRound> OuterLoop::decided_rounds() const {
  std::vector<protocol::DecidedRound> out;
  for (const auto& flight : in_flight_.all()) {
    if (flight.result)
      out.push_back({flight.fragment, flight.round, flight.result->chunks, flight.result->samples});
  }
  return out;
}

AlignedVector<float> saved_global_parameters(std::span<const std::byte> agreed,
                                             const FragmentLayout& layout) {
  auto global = saved_state<AgreedState>(agreed).global;
  if (global.size() != layout.buffer_size()) refuse_state("is of another layout");
  return global;
}

std::vector<protocol::FragmentState> saved_fragments(std::span<const std::byte> agreed) {
  return saved_state<AgreedState>(agreed).fragments;
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
  live_.forget(p);
  // The global parameters are past the warm-up and differ from the local ones.
  if (synchronous()) clock_.go_to(schedule().warmup_steps());
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
  auto rule = live_.rule_of(p, round);
  live_.applied(p, schedule().send_step(p, round));
  rule.merge = quant::Merge::mix;
  rule.alpha = 1;  // leaves the local parameters unchanged
  if (is_checked(p, round)) measure(p, round, results, rule);
  if (const auto bad = state_->apply(p, codecs_.of(round), results, rule)) refuse_result(round, *bad);
  extend_chain(p, results, {});
}

void OuterLoop::begin_at(std::uint64_t step) {
  live_.take_again();
  bool fits = step >= schedule().warmup_steps();
  for (FragmentId p = 0; fits && p < layout_.fragment_count(); ++p) {
    const auto round = fragments_[p].round;
    const auto sent = schedule().rounds_sent(p, step);
    // In addition to the rounds in flight, as many rounds may be decided as members keep results of; those
    // results arrive later.
    fits = round <= sent + 1 && sent <= round + protocol::Member::max_kept + 1;
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
  unsent_.clear();
  clock_.go_to(step);
  in_flight_.clear();
  gossip_.forget_all();
  // Rounds in flight wait for every trainer in the view. This replica has trained nothing yet, so its
  // contributions to them have weight 0.
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) send_what_is_due(p);
  clock_.begin(in_flight_.is_late(schedule(), step));
  offer_state();
}

}  // namespace isthmus::outer_sync
