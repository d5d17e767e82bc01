// A member's part in a change of the view: it seals, enters the next view, and brings its rounds along.

#include <algorithm>
#include <cassert>
#include <set>
#include <utility>

#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/received.h"

namespace isthmus::outer_sync::protocol {

std::optional<Sealed> Member::seal(ViewNumber view) {
  if (view < sealed_ || view <= view_.number) return std::nullopt;
  // Without this, results kept would add up over consecutive views in which no round is applied.
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) forget(p);
  sealed_ = view;
  return Sealed{.view = view,
                .activated = view_.number,
                .layout = {layout_.fragments().begin(), layout_.fragments().end()},
                .chunk_elements = layout_.chunk_elements(),
                .fragments = applied_,
                .history = history_,
                .held = held_results(),
                .step = 0,
                .parameters = {},
                .ledger = ledger_,
                .taken = {},
                .reserved = {},
                .settings = settings_,
                .reach = 0,
                .members = view_.members};
}

void Member::forget_seal() {
  assert(view_.number == 0);
  sealed_ = 0;
}

bool Member::fits(const NewView& message, MemberIndex self) const {
  return self < message.view.members.size() && problem_of(message, {.steps = 0, .layout = &layout_}).empty();
}

/// The reference's members have the run's history. Any other member's present rounds must be in that history.
bool Member::is_of_the_run(const NewView& message) const {
  if (view_.number == message.reference) return true;
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    const auto& chain = message.chains[p];
    if (std::ranges::find(chain, applied_[p]) == chain.end()) return false;
  }
  return true;
}

Member::Entry Member::activate(const NewView& message, MemberIndex self) {
  assert(fits(message, self));
  if (message.view.number != sealed_ || message.view.number <= view_.number) return Entry::ignored;
  const bool of_reference = is_of_reference(message, self);
  const bool reduces = !trains(message.view.members[self]);
  if (!reduces && !is_of_the_run(message)) return Entry::evicted;
  if (!of_reference && !restored_are_decided(message)) return Entry::evicted;
  retracted_.clear();
  if (!of_reference) discard_unapplied();
  if (!of_reference && reduces) begin_anew(message);
  if (view_.number == 0 || (!of_reference && reduces)) learn_ledger(message.ledger);
  forget_residuals(message.view, self);
  gathering_.clear();
  fixed_.clear();
  view_ = message.view;
  settings_ = message.settings;
  self_ = self;
  ids_.clear();
  trainers_.clear();
  for (const auto& member : view_.members) {
    ids_.push_back(id_of(member));
    if (trains(member)) trainers_.push_back(ids_.back());
  }
  lease_end_.reset();
  std::vector<std::uint32_t> owned(layout_.fragment_count(), 0);
  for (ChunkId k = 0; k < layout_.chunk_count(); ++k) {
    if (view_.owners[k] == self_) ++owned[layout_.fragment_of(k)];
  }
  health_.begin(std::move(owned));
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    const auto round_of = [p](const auto& rounds) { return rounds[p]; };
    lowest_[p] = round_of(*std::ranges::min_element(message.applied, {}, round_of));
  }
  unacknowledged_.assign(view_.members.size(), {});
  dropped_early_.assign(view_.members.size(), false);
  push_fixed(message);
  contribute_again();
  const auto members = static_cast<MemberIndex>(view_.members.size());
  for (MemberIndex peer = 0; peer < members; ++peer) {
    if (peer != self_) actions_.push_back(SendBegun{peer, view_.number});
  }
  return Entry::begun;
}

/// The trainer applies the rounds of its checkpoint in any case, so the run must have decided them too.
bool Member::restored_are_decided(const NewView& message) const {
  return std::ranges::all_of(results_, [&](const auto& entry) {
    const auto& [place, results] = entry;
    const auto [round, fragment] = place;
    if (!results.restored || round <= applied_[fragment].round) return true;
    const auto fixed =
        std::ranges::find_if(message.fixed, [&, r = round, p = fragment](const auto& candidate) {
          return candidate.round == r && candidate.fragment == p;
        });
    if (fixed == message.fixed.end()) return false;
    for (std::size_t i = 0; i < results.by_chunk.size(); ++i) {
      if (std::ranges::none_of(fixed->holders, [&](const auto& holder) { return holder.second.has(i); }))
        return false;
    }
    return true;
  });
}

/// Results of a view that others have left may have been made again from other contributions.
void Member::discard_unapplied() {
  for (auto at = results_.begin(); at != results_.end();) {
    const auto [round, fragment] = at->first;
    if (round <= applied_[fragment].round || at->second.restored) {
      ++at;
      continue;
    }
    if (at->second.missing == 0) retracted_.emplace_back(fragment, round);
    at = results_.erase(at);
  }
}

/// Drops everything of older views: rounds, results and residuals.
void Member::begin_anew(const NewView& message) {
  for (ChunkId k = 0; k < view_.owners.size(); ++k) {
    if (view_.owners[k] == self_) actions_.push_back(ForgetResidual{k});
  }
  results_.clear();
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    history_[p] = message.chains[p];
    applied_[p] = history_[p].back();
    history_[p].pop_back();
    ledger_[p] = FragmentLedger(applied_[p].round);
  }
}

/// Takes the run's ledger as of this member's rounds. The contents of later rounds arrive with their results.
void Member::learn_ledger(const Ledger& of_the_run) {
  for (FragmentId p = 0; p < ledger_.size(); ++p) {
    auto known = of_the_run[p];
    const auto& state = applied_[p];
    if (!known.cut(state.round)) {
      if (ledger_[p].round() != state.round) ledger_[p] = FragmentLedger(state.round);
    } else if (ledger_[p].round() != state.round || known.unknown() < ledger_[p].unknown()) {
      ledger_[p] = std::move(known);
    }
  }
}

/// A reduction has changed its owner's residual even if no member keeps the result.
void Member::forget_residuals(const View& next, MemberIndex next_self) {
  std::set<ChunkId> chunks;
  for (const auto& [place, gathering] : gathering_) {
    const auto [round, chunk] = place;
    if (gathering.closed && held({round, chunk, self_, ChunkKind::result}) == nullptr) chunks.insert(chunk);
  }
  for (ChunkId k = 0; k < view_.owners.size(); ++k) {
    if (view_.owners[k] == self_ && next.owners[k] != next_self) chunks.insert(k);
  }
  for (const auto chunk : chunks) actions_.push_back(ForgetResidual{chunk});
}

/// The first holder of each decided chunk sends it to the members that lack it.
void Member::push_fixed(const NewView& message) {
  const auto members = static_cast<MemberIndex>(view_.members.size());
  for (const auto& fixed : message.fixed) {
    const auto chunks = layout_.chunks_of(fixed.fragment);
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const auto has = [&](const auto& holder) { return holder.second.has(i); };
      const auto first = std::ranges::find_if(fixed.holders, has);
      if (first == fixed.holders.end()) continue;
      const auto chunk = static_cast<ChunkId>(chunks.first + i);
      fixed_.insert({fixed.round, chunk});
      const auto place = results_.find({fixed.round, fixed.fragment});
      if (first->first != self_ || place == results_.end() || !place->second.by_chunk[i].bytes) continue;
      const auto& result = place->second.by_chunk[i];
      for (MemberIndex peer = 0; peer < members; ++peer) {
        const bool holds = std::ranges::any_of(
            fixed.holders, [&](const auto& holder) { return holder.first == peer && has(holder); });
        if (peer == self_ || holds || message.applied[peer][fixed.fragment] >= fixed.round) continue;
        send(peer, {.view = view_.number,
                    .key = {fixed.round, chunk, self_, ChunkKind::result},
                    .bytes = result.bytes,
                    .contributors = result.contributors,
                    .norms = result.norms,
                    .trained_on = result.trained_on});
      }
    }
  }
}

/// Sends the same bytes as before to the present owners.
void Member::contribute_again() {
  for (const auto& [place, own] : own_) send_contribution(place.second, place.first, own);
}

}  // namespace isthmus::outer_sync::protocol
