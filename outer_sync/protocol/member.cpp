// A member's rounds: contributing, reducing what it owns, receiving, applying, forgetting. Views are in
// member_views.cpp, contributions gathered and results kept in member_results.cpp.

#include "isthmus/outer_sync/protocol/member.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

namespace isthmus::outer_sync::protocol {

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

}  // namespace isthmus::outer_sync::protocol
