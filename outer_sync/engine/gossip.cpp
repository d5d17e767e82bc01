#include "isthmus/outer_sync/engine/gossip.h"

#include <algorithm>
#include <string>
#include <utility>

#include "isthmus/base/error.h"

namespace isthmus::outer_sync {
namespace {

/// Keeps the noise of an exchange apart from that of the round with the same number.
constexpr std::uint64_t noise_of_exchanges = 0x9e3779b97f4a7c15;

std::string exchange_args(FragmentId p, std::uint64_t step) {
  return "{\"fragment\":" + std::to_string(p) + ",\"step\":" + std::to_string(step) + "}";
}

/// An exchange may take as long as a round of the fragment, and at least a step.
std::uint64_t delay_of(const Schedule& schedule, FragmentId p, std::uint64_t step) {
  const auto round = schedule.rounds_sent(p, step) + 1;
  return std::max<std::uint64_t>(1, schedule.due_step(p, round) - schedule.send_step(p, round));
}

}  // namespace

Gossip::Gossip(const FragmentLayout& layout, OuterState& state, RoundExchange& exchange, Trace& trace,
               const Rule& rule)
    : layout_(layout),
      state_(state),
      exchange_(exchange),
      trace_(trace),
      rule_(rule),
      pending_(layout.fragment_count()) {}

void Gossip::check() {
  for (auto& pending : pending_) {
    if (pending) pending->hand_over.check();
  }
}

void Gossip::make_step(const Schedule& schedule, std::uint64_t step, RoundsInFlight& in_flight,
                       const UnsentWork& work) {
  if (rule_.every == 0) return;
  for (FragmentId p = 0; p < pending_.size(); ++p) {
    if (pending_[p] && pending_[p]->due <= step) average(p);
    if (in_flight.oldest(p) == nullptr && is_due(p, schedule, step))
      begin(p, step, step + delay_of(schedule, p, step), work.tokens(p));
  }
}

bool Gossip::may_act(const Schedule& schedule, std::uint64_t step) const {
  if (rule_.every == 0) return false;
  for (FragmentId p = 0; p < pending_.size(); ++p) {
    if (pending_[p] || is_due(p, schedule, step)) return true;
  }
  return false;
}

/// Exchanges are `every` steps apart, and the last one is `every` steps before the next round is sent. At the
/// step at which a round is applied there is nothing to exchange yet.
bool Gossip::is_due(FragmentId p, const Schedule& schedule, std::uint64_t step) const {
  const auto sent = schedule.rounds_sent(p, step);
  const auto next = schedule.send_step(p, sent + 1);
  if (sent > schedule.warmup_steps() && step <= schedule.due_step(p, sent)) return false;
  return (next - step) % rule_.every == 0 && next > step + delay_of(schedule, p, step);
}

void Gossip::begin(FragmentId p, std::uint64_t step, std::uint64_t due, std::uint64_t weight) {
  forget(p);
  if (!exchange_.begin_exchange(p, step)) return;
  const Trace::Scope scope(trace_, Trace::Row::outer, "encode exchange", exchange_args(p, step));
  auto& pending = pending_[p].emplace(Pending{.step = step, .due = due, .weight = weight});
  const auto hand_in = [this, &pending](const EncodedChunk& encoded) {
    if (encoded.bad_element) throw bad_element(layout_, encoded, "an outer gradient", pending.step);
    if (rule_.reject > 0)
      pending.squares += exchange_.reducer().squares(encoded.chunk, pending.step, *encoded.bytes);
    pending.own.push_back(encoded.bytes);
    exchange_.exchange(encoded.chunk, pending.step, encoded.bytes, pending.weight);
  };
  pending.hand_over = state_.encode(p,
                                    {.codec = rule_.codec,
                                     .round = step,
                                     .noise_seed = rule_.noise_seed ^ noise_of_exchanges,
                                     .uses_residual = false},
                                    exchange_.buffers(), hand_in);
}

/// With equal weights, or none, each gets half of the other's.
void Gossip::average(FragmentId p) {
  auto& pending = *pending_[p];
  const auto theirs = exchange_.take_exchanged(p, pending.step);
  if (!theirs) return;
  pending.hand_over.finish();
  if (is_acceptable(p, pending, *theirs)) {
    const Trace::Scope scope(trace_, Trace::Row::outer, "average pair", exchange_args(p, pending.step));
    const auto own = static_cast<double>(pending.weight), other = static_cast<double>(theirs->weight);
    const auto share = own + other > 0 ? static_cast<float>(other / (own + other)) : 0.5F;
    state_.shift_local(p, rule_.codec, {{pending.own, share}, {theirs->chunks, -share}});
    ++stats_.averaged;
  } else {
    ++stats_.refused;
  }
  pending_[p].reset();
}

bool Gossip::is_acceptable(FragmentId p, const Pending& pending, const protocol::Exchanged& theirs) const {
  const auto chunks = layout_.chunks_of(p);
  double squares = 0;
  for (auto k = chunks.first; k < chunks.last; ++k) {
    const auto& bytes = *theirs.chunks[k - chunks.first];
    if (!quant::valid(rule_.codec, bytes, layout_.chunk(k).size)) return false;
    if (rule_.reject > 0) squares += exchange_.reducer().squares(k, pending.step, bytes);
  }
  if (rule_.reject == 0 || pending.weight == 0) return true;
  // A partner that was trained on more has moved further.
  const double more = std::max(1.0, static_cast<double>(theirs.weight) / static_cast<double>(pending.weight));
  const double factor = rule_.reject * more;
  return squares <= factor * factor * pending.squares;
}

void Gossip::forget(FragmentId p) {
  if (!pending_[p]) return;
  ++stats_.missed;
  exchange_.end_exchange(p, pending_[p]->step);
  pending_[p].reset();
}

void Gossip::forget_all() {
  for (FragmentId p = 0; p < pending_.size(); ++p) forget(p);
}

}  // namespace isthmus::outer_sync
