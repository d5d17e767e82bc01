// The chunks that a member holds: contributions gathered as the owner, until they close; results, until all
// of a round are here and it is delivered.

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/protocol/member.h"

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

/// The names behind the contributions are not in the checkpoint, and are not needed: they are gone or have
/// returned under other names. Norms are listed only so that `outer.reject` finds its rule respected.
void Member::keep_restored(const DecidedRound& round) {
  assert(view_.number == 0 && round.round > applied_.at(round.fragment).round);
  auto& results = results_of(round.fragment, round.round);
  assert(round.results.size() == results.by_chunk.size());
  results.missing = 0;
  results.restored = true;
  for (std::size_t i = 0; i < results.by_chunk.size(); ++i) {
    results.by_chunk[i] = {round.results[i], {unknown_replica}, {}, {}};
    if (closing_.reject > 0) results.by_chunk[i].norms = {{unknown_replica, 1}};
  }
  for (const auto& range : round.samples)
    results.by_chunk.front().trained_on.push_back({unknown_replica, range});
}

/// The results of all rounds that are not forgotten, as a seal reports them.
std::vector<HeldResults> Member::held_results() const {
  std::vector<HeldResults> out;
  for (const auto& [place, results] : results_) {
    HeldResults held{place.second, place.first, ChunkSet(results.by_chunk.size())};
    for (std::size_t i = 0; i < results.by_chunk.size(); ++i) {
      if (results.by_chunk[i].bytes) held.chunks.add(i);
    }
    if (place.first > applied_[place.second].round) {
      held.trained_on = results.by_chunk.front().trained_on;
      held.contributors = in_all(results.by_chunk);
    }
    out.push_back(std::move(held));
  }
  return out;
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
