// The records of the rounds that the outer loop applies: the hash chain, the round log, digests and figures.

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/outer_sync/log/chain.h"
#include "isthmus/outer_sync/protocol/state_digests.h"

namespace isthmus::outer_sync {
namespace {

std::vector<std::span<const std::byte>> spans_of(std::span<const protocol::SharedBytes> chunks) {
  std::vector<std::span<const std::byte>> spans;
  for (const auto& bytes : chunks) spans.emplace_back(*bytes);
  return spans;
}

}  // namespace

/// Records that the fragment's next round is applied.
void OuterLoop::extend_chain(FragmentId p, std::span<const protocol::SharedBytes> results,
                             std::vector<SampleRange> samples) {
  auto& state = fragments_[p];
  const auto round = state.round + 1;
  const std::vector<std::span<const std::byte>> bytes = spans_of(results);
  state = {round, log::next_chain(state.chain, p, round, bytes)};
  ++stats_.rounds;
  if (log_) log_->append(p, state, live_.rule_of(p, round), results);
  snapshot_to_log(p);
  if (is_checked(p, round)) exchange_.checked({p, round, state_->digest(p)});
  exchange_.applied(p, round, state.chain, std::move(samples));
}

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

/// Checked rounds read the state for its digest, and so get the figures of the outer step as well.
bool OuterLoop::is_checked(FragmentId p, protocol::Round round) const {
  return round > codecs_.warmup_rounds && protocol::is_checked(p, round);
}

/// Computes the figures of the outer step about to be made.
void OuterLoop::measure(FragmentId p, protocol::Round round, std::span<const protocol::SharedBytes> results,
                        const quant::OuterStep& rule) {
  figures_[p] = {.round = round};
  if (const auto products = state_->products(p, codecs_.of(round), results))
    figures_[p].step = figures_of(*products, rule);
  const auto& step = figures_[p].step;
  if (!step || !step->has_momentum) return;
  ++stats_.measured;
  stats_.gains += step->gain;
  stats_.correlations += step->correlation;
}

}  // namespace isthmus::outer_sync
