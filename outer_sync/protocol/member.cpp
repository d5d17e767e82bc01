#include "isthmus/outer_sync/protocol/member.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

#include "isthmus/outer_sync/protocol/received.h"

namespace isthmus::outer_sync::protocol {
namespace {

/// The replicas that contributed to all results present. (A replica missing from one of them gets its samples
/// back and reports them again with the next round. A rejected replica is in no ledger either, since the
/// result's bytes do not contain its values.)
template <class Results>
std::vector<ReplicaId> in_all(const Results& chunks) {
  std::optional<std::vector<ReplicaId>> out;
  for (const auto& chunk : chunks) {
    if (chunk.bytes) keep_common(out, chunk.contributors);
  }
  return out.value_or(std::vector<ReplicaId>());
}

}  // namespace

Member::Member(const FragmentLayout& layout, CodecPlan codecs, ClosingRule closing,
               std::vector<FragmentState> fragments, Ledger ledger, Settings settings)
    : layout_(layout),
      codecs_(codecs),
      closing_(closing),
      applied_(std::move(fragments)),
      history_(layout.fragment_count()),
      ledger_(std::move(ledger)),
      settings_(std::move(settings)),
      lowest_(layout.fragment_count(), 0) {
  assert(applied_.size() == layout_.fragment_count());
  if (ledger_.empty()) {
    for (const auto& fragment : applied_) ledger_.emplace_back(fragment.round);
  }
  assert(ledger_.size() == applied_.size());
}

// ---- views ----

std::optional<Sealed> Member::seal(ViewNumber view) {
  if (view < sealed_ || view <= view_.number) return std::nullopt;
  // Without this, results kept would add up over consecutive views in which no round is applied.
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) forget(p);
  sealed_ = view;
  Sealed sealed{.view = view,
                .activated = view_.number,
                .layout = {layout_.fragments().begin(), layout_.fragments().end()},
                .chunk_elements = layout_.chunk_elements(),
                .fragments = applied_,
                .history = history_,
                .held = {},
                .step = 0,
                .parameters = {},
                .ledger = ledger_,
                .taken = {},
                .reserved = {},
                .settings = settings_,
                .reach = 0,
                .members = view_.members};
  for (const auto& [place, results] : results_) {
    HeldResults held{place.second, place.first, ChunkSet(results.by_chunk.size())};
    for (std::size_t i = 0; i < results.by_chunk.size(); ++i) {
      if (results.by_chunk[i].bytes) held.chunks.add(i);
    }
    if (place.first > applied_[place.second].round) {
      held.trained_on = results.by_chunk.front().trained_on;
      held.contributors = in_all(results.by_chunk);
    }
    sealed.held.push_back(std::move(held));
  }
  return sealed;
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

/// Results of a view that others have left may have been made again from other contributions.
void Member::discard_unapplied() {
  for (auto at = results_.begin(); at != results_.end();) {
    const auto [round, fragment] = at->first;
    if (round <= applied_[fragment].round) {
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

// ---- rounds ----

void Member::contribute(ChunkId chunk, Round round, const SharedBytes& bytes, std::uint64_t weight,
                        double squares, const SampleSet& samples, const SharedBytes& packed) {
  assert(samples.empty() || begins_fragment(chunk));
  assert(samples.ranges().size() <= max_trained_on);
  const auto place = own_.insert_or_assign({round, chunk}, Contribution{bytes, weight, squares, {}}).first;
  // The id of this view stays valid: a replica's id never changes.
  for (const auto& range : samples.ranges()) place->second.trained_on.push_back({ids_.at(self_), range});
  if (in_view()) send_contribution(chunk, round, place->second, packed);
}

/// A decided chunk needs no contribution: the sender gets its values back when it applies the round.
void Member::send_contribution(ChunkId chunk, Round round, const Contribution& own,
                               const SharedBytes& packed) {
  if (is_decided(chunk, round)) return;
  const auto owner = view_.owners.at(chunk);
  if (owner == self_) {
    gather(self_, chunk, round, own);
  } else {
    send(owner,
         {.view = view_.number,
          .key = {round, chunk, self_, ChunkKind::contribution},
          .bytes = own.bytes,
          .weight = own.weight,
          .trained_on = own.trained_on},
         packed);
  }
}

void Member::reduced(ViewNumber view, ChunkId chunk, Round round, const SharedBytes& bytes,
                     const Measured& measured, const SharedBytes& packed) {
  if (!in_view() || view != view_.number) return;  // sealed since then: the next owner makes the result again
  const auto place = gathering_.find({round, chunk});
  if (place == gathering_.end()) return;
  std::vector<ReplicaId> present;
  auto& by_member = place->second.by_member;
  std::vector<TrainedOn> trained_on;
  for (std::size_t m = 0; m < by_member.size(); ++m) {
    if (by_member[m].bytes) present.push_back(ids_[m]);
    by_member[m].bytes = nullptr;
    std::ranges::copy(by_member[m].trained_on, std::back_inserter(trained_on));
  }
  Result result{bytes, present, {}, std::move(trained_on)};
  if (closing_.reject > 0) {
    assert(measured.squares.size() == present.size());
    const auto stays = kept(reject_rule(), measured.squares);
    result.contributors.clear();
    for (std::size_t i = 0; i < present.size(); ++i) {
      result.norms.push_back({present[i], measured.squares[i]});
      if (stays[i]) result.contributors.push_back(present[i]);
    }
  }
  const auto members = static_cast<MemberIndex>(view_.members.size());
  const auto listed =
      result.contributors.size() == trainers_.size() ? std::vector<ReplicaId>() : result.contributors;
  for (MemberIndex peer = 0; peer < members; ++peer) {
    if (peer == self_) continue;
    send(peer,
         {.view = view_.number,
          .key = {round, chunk, self_, ChunkKind::result},
          .bytes = bytes,
          .contributors = listed,
          .norms = result.norms,
          .trained_on = result.trained_on},
         packed);
  }
  // Gradients of the warm-up are another quantity than outer gradients.
  if (round > codecs_.warmup_rounds && measured.squares.size() == present.size())
    health_.add(layout_.fragment_of(chunk), round, present, measured);
  keep_result(chunk, round, std::move(result));
}

void Member::applied(FragmentId fragment, Round round, const Digest& chain,
                     std::vector<SampleRange> samples) {
  assert(round == applied_.at(fragment).round + 1);
  auto& history = history_[fragment];
  history.push_back(applied_[fragment]);
  if (history.size() >= history_length) history.erase(history.begin());
  applied_[fragment] = {round, chain};
  if (view_.number > 0)
    ledger_[fragment].add(std::move(samples));
  else
    ledger_[fragment].skip();  // it follows the others' rounds without being in a view
  const auto chunks = layout_.chunks_of(fragment);
  gathering_.erase(gathering_.lower_bound({round, chunks.first}),
                   gathering_.lower_bound({round, chunks.last}));
  own_.erase(own_.lower_bound({round, chunks.first}), own_.lower_bound({round, chunks.last}));
  // The round is closed: the owners have used our contributions, acknowledged or not, or closed without them.
  for (auto& of_peer : unacknowledged_) {
    for (auto k = chunks.first; k < chunks.last; ++k)
      of_peer.erase({round, k, self_, ChunkKind::contribution});
  }
  forget(fragment);
  for (std::size_t peer = 0; peer < dropped_early_.size(); ++peer) {
    if (!dropped_early_[peer]) continue;
    dropped_early_[peer] = false;
    actions_.push_back(SendBegun{static_cast<MemberIndex>(peer), view_.number});
  }
}

void Member::lowest_applied(const std::vector<Round>& lowest) {
  if (lowest.size() != lowest_.size() || !in_view()) return;
  for (FragmentId p = 0; p < lowest_.size(); ++p) {
    lowest_[p] = std::max(lowest_[p], lowest[p]);
    forget(p);
  }
}

/// Between a seal and its view, no reported result may be dropped.
void Member::forget(FragmentId fragment) {
  if (!in_view()) return;
  const auto last = applied_[fragment].round;
  const auto chunks = layout_.chunks_of(fragment);
  for (auto at = results_.begin(); at != results_.end();) {
    const auto [round, p] = at->first;
    const bool needless = p == fragment && round + always_kept <= last &&
                          (round <= lowest_[fragment] || round + max_kept <= last);
    if (!needless) {
      ++at;
      continue;
    }
    for (auto& of_peer : unacknowledged_) {
      for (auto k = chunks.first; k < chunks.last; ++k) of_peer.erase({round, k, self_, ChunkKind::result});
    }
    at = results_.erase(at);
  }
}

std::optional<std::string> Member::receive(MemberIndex from, const ChunkMessage& message) {
  if (!in_view() || message.view != view_.number) return std::nullopt;
  if (auto problem = check(from, message)) return problem;
  const auto& [round, chunk, sender, kind] = message.key;
  const auto last = applied_[layout_.fragment_of(chunk)].round;
  if (round > last + window) {  // this member lags, and requests the chunk again later
    dropped_early_.at(from) = true;
    return std::nullopt;
  }
  actions_.push_back(SendAck{from, message.view, message.key});
  if (round <= last || held(message.key) != nullptr) return std::nullopt;  // a repeat
  if (kind == ChunkKind::contribution) {
    if (is_decided(chunk, round)) return std::nullopt;  // too late: decided results are not made again
    gather(from, chunk, round, {message.bytes, message.weight, 0, message.trained_on});
  } else {
    keep_result(chunk, round,
                {message.bytes, message.contributors.empty() ? trainers_ : message.contributors,
                 message.norms, message.trained_on});
  }
  return std::nullopt;
}

void Member::acknowledged(MemberIndex from, ViewNumber view, const ChunkKey& key) {
  if (view == view_.number && from < unacknowledged_.size()) unacknowledged_[from].erase(key);
}

void Member::peer_begun(MemberIndex from, ViewNumber view) {
  if (!in_view() || view != view_.number || from >= unacknowledged_.size()) return;
  repeat_to(from, [](const ChunkKey&) { return true; });
}

std::size_t Member::unacknowledged() const {
  std::size_t sum = 0;
  for (const auto& of_peer : unacknowledged_) sum += of_peer.size();
  return sum;
}

std::size_t Member::chunks_held() const {
  std::size_t sum = own_.size();
  for (const auto& [place, gathering] : gathering_) {
    for (const auto& contribution : gathering.by_member) sum += contribution.bytes ? 1 : 0;
  }
  for (const auto& [place, results] : results_) sum += results.by_chunk.size() - results.missing;
  return sum;
}

/// Repeats are sent unpacked: they are rare, and keeping both forms until the acknowledgement would double
/// the memory.
void Member::send(MemberIndex peer, ChunkMessage message, const SharedBytes& packed) {
  unacknowledged_.at(peer).insert_or_assign(message.key, message);
  actions_.push_back(SendChunk{peer, std::move(message), packed});
}

// ---- owner ----

void Member::gather(MemberIndex from, ChunkId chunk, Round round, Contribution contribution) {
  auto& gathering = gathering_.try_emplace({round, chunk}).first->second;
  gathering.by_member.resize(view_.members.size());
  auto& place = gathering.by_member.at(from);
  if (gathering.closed || place.bytes) return;
  place = std::move(contribution);
  // With all contributions it closes at once: no other result can be made in this view.
  if (++gathering.present == trainers_.size()) close(chunk, round, gathering);
}

/// Only while the coordinator guarantees that no other view has begun.
void Member::close_by_quorum(ChunkId chunk, Round round, Gathering& gathering, Time now) {
  if (gathering.closed || gathering.present < std::max(closing_.quorum, closing_.least)) return;
  if (!gathering.quorum_since) gathering.quorum_since = now;
  const bool waited = now - *gathering.quorum_since >= closing_.grace;
  const bool leased = lease_end_ && now < *lease_end_;
  if (waited && leased) close(chunk, round, gathering);
}

void Member::close(ChunkId chunk, Round round, Gathering& gathering) {
  gathering.closed = true;
  Reduce job{view_.number, chunk, round, {}, {}, reject_rule(), {}};
  for (std::size_t m = 0; m < gathering.by_member.size(); ++m) {
    const auto& contribution = gathering.by_member[m];
    if (!contribution.bytes) continue;
    job.contributions.push_back(contribution.bytes);
    job.weights.push_back(contribution.weight);
    job.members.push_back(static_cast<MemberIndex>(m));
  }
  actions_.push_back(std::move(job));
}

void Member::tick(Time now) {
  if (!in_view() || closing_.quorum == 0) return;
  for (auto& [place, gathering] : gathering_) close_by_quorum(place.second, place.first, gathering, now);
}

// ---- results ----

Member::Results& Member::results_of(FragmentId fragment, Round round) {
  auto [place, is_new] = results_.try_emplace({round, fragment});
  if (is_new) {
    place->second.missing = layout_.chunks_of(fragment).size();
    place->second.by_chunk.resize(place->second.missing);
  }
  return place->second;
}

void Member::keep_result(ChunkId chunk, Round round, Result result) {
  const auto fragment = layout_.fragment_of(chunk);
  auto& results = results_of(fragment, round);
  auto& place = results.by_chunk.at(chunk - layout_.chunks_of(fragment).first);
  if (place.bytes) return;
  place = std::move(result);
  if (--results.missing == 0) deliver(fragment, round, results);
}

void Member::deliver(FragmentId fragment, Round round, const Results& results) {
  Deliver out{fragment, round, {}, {}, {}, trainers_.size(), {}};
  out.samples = samples_of(results.by_chunk.front().trained_on, in_all(results.by_chunk));
  const auto me = ids_.at(self_);
  for (const auto& result : results.by_chunk) {
    out.results.push_back(result.bytes);
    out.included.push_back(std::ranges::find(result.contributors, me) != result.contributors.end());
    out.rejected.push_back(!out.included.back() &&
                           std::ranges::find(result.norms, me, &SquaredNorm::replica) != result.norms.end());
    out.contributed = std::min(out.contributed, result.contributors.size());
  }
  actions_.push_back(std::move(out));
}

std::vector<SharedBytes> Member::held(FragmentId fragment, Round round) const {
  const auto place = results_.find({round, fragment});
  std::vector<SharedBytes> out(layout_.chunks_of(fragment).size());
  if (place == results_.end()) return out;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = place->second.by_chunk[i].bytes;
  return out;
}

/// The result is here, or was decided before this view began.
bool Member::is_decided(ChunkId chunk, Round round) const {
  return fixed_.contains({round, chunk}) || held({round, chunk, 0, ChunkKind::result}) != nullptr;
}

const SharedBytes* Member::held(const ChunkKey& key) const {
  if (key.kind == ChunkKind::contribution) {
    const auto place = gathering_.find({key.round, key.chunk});
    if (place == gathering_.end() || key.sender >= place->second.by_member.size()) return nullptr;
    const auto& bytes = place->second.by_member[key.sender].bytes;
    return bytes ? &bytes : nullptr;
  }
  const auto fragment = layout_.fragment_of(key.chunk);
  const auto place = results_.find({key.round, fragment});
  if (place == results_.end()) return nullptr;
  const auto& bytes = place->second.by_chunk.at(key.chunk - layout_.chunks_of(fragment).first).bytes;
  return bytes ? &bytes : nullptr;
}

}  // namespace isthmus::outer_sync::protocol
