#include "isthmus/outer_sync/protocol/member.h"

#include <cassert>
#include <utility>

namespace isthmus::outer_sync::protocol {

Member::Member(const FragmentLayout& layout, CodecPlan codecs, std::vector<Round> applied)
    : layout_(layout), codecs_(codecs), applied_(std::move(applied)) {
  assert(applied_.size() == layout_.fragment_count());
}

void Member::activate(View view, MemberIndex self) {
  assert(view.number > view_.number && self < view.members.size() &&
         view.owners.size() == layout_.chunk_count());
  view_ = std::move(view);
  self_ = self;
  unacknowledged_.assign(view_.members.size(), {});
}

void Member::contribute(ChunkId chunk, Round round, const SharedBytes& bytes) {
  const auto owner = view_.owners.at(chunk);
  if (owner == self_) {
    gather(self_, chunk, round, bytes);
  } else {
    send(owner, {round, chunk, self_, ChunkKind::contribution}, bytes);
  }
}

void Member::reduced(ChunkId chunk, Round round, const SharedBytes& bytes) {
  const ChunkKey key{round, chunk, self_, ChunkKind::result};
  const auto members = static_cast<MemberIndex>(view_.members.size());
  for (MemberIndex peer = 0; peer < members; ++peer) {
    if (peer != self_) send(peer, key, bytes);
  }
  keep_result(chunk, round, bytes);
}

void Member::applied(FragmentId fragment, Round round) {
  assert(round == applied_.at(fragment) + 1);
  applied_[fragment] = round;
  results_.erase({round, fragment});
  const auto chunks = layout_.chunks_of(fragment);
  gathering_.erase(gathering_.lower_bound({round, chunks.first}),
                   gathering_.lower_bound({round, chunks.last}));
  // Results are made of what the owners have got from us, acknowledged or not.
  for (auto k = chunks.first; k < chunks.last; ++k) {
    unacknowledged_.at(view_.owners[k]).erase({round, k, self_, ChunkKind::contribution});
  }
}

std::optional<std::string> Member::check(MemberIndex from, const ChunkMessage& message) const {
  const auto& [round, chunk, sender, kind] = message.key;
  if (message.view != view_.number) {
    return "a chunk of view " + std::to_string(message.view) + " in view " + std::to_string(view_.number);
  }
  if (sender != from) return "a chunk in the name of member " + std::to_string(sender);
  if (chunk >= layout_.chunk_count()) {
    return "chunk " + std::to_string(chunk) + " of " + std::to_string(layout_.chunk_count());
  }
  const auto owner = view_.owners[chunk];
  if (kind == ChunkKind::contribution && owner != self_)
    return "a contribution to a chunk that is not owned here";
  if (kind == ChunkKind::result && owner != from) return "a result of a chunk that it does not own";
  if (kind != ChunkKind::contribution && kind != ChunkKind::result) return "a chunk of unknown kind";
  const auto last = applied_[layout_.fragment_of(chunk)];
  if (round == 0 || round > last + codecs_.window) {
    return "round " + std::to_string(round) + " of a fragment at round " + std::to_string(last);
  }
  const auto size = quant::encoded_size(codecs_.of(round), layout_.chunk(chunk).size);
  if (message.bytes->size() != size) {
    return "a chunk of " + std::to_string(message.bytes->size()) + " bytes; expected " + std::to_string(size);
  }
  if (const auto* mine = held(message.key); mine != nullptr && **mine != *message.bytes) {
    return "two different chunks for one place in one round";
  }
  return std::nullopt;
}

std::optional<std::string> Member::receive(MemberIndex from, const ChunkMessage& message) {
  if (auto problem = check(from, message)) return problem;
  actions_.push_back(SendAck{from, message.view, message.key});
  const auto& [round, chunk, sender, kind] = message.key;
  const bool stale = round <= applied_[layout_.fragment_of(chunk)];
  if (stale || held(message.key) != nullptr) return std::nullopt;  // a repeat: acknowledged again, used once
  if (kind == ChunkKind::contribution) {
    // Who contributes has applied the round before, acknowledged or not: so at most one result per peer and
    // chunk is kept, however often lanes break.
    unacknowledged_.at(from).erase({round - 1, chunk, self_, ChunkKind::result});
    gather(from, chunk, round, message.bytes);
  } else {
    keep_result(chunk, round, message.bytes);
  }
  return std::nullopt;
}

void Member::acknowledged(MemberIndex from, ViewNumber view, const ChunkKey& key) {
  if (view == view_.number && from < unacknowledged_.size()) unacknowledged_[from].erase(key);
}

std::size_t Member::unacknowledged() const {
  std::size_t sum = 0;
  for (const auto& of_peer : unacknowledged_) sum += of_peer.size();
  return sum;
}

void Member::send(MemberIndex peer, const ChunkKey& key, const SharedBytes& bytes) {
  unacknowledged_.at(peer).emplace(key, bytes);
  actions_.push_back(SendChunk{peer, {view_.number, key, bytes}});
}

void Member::gather(MemberIndex from, ChunkId chunk, Round round, const SharedBytes& bytes) {
  auto [place, is_new] = gathering_.try_emplace({round, chunk});
  auto& gathering = place->second;
  if (is_new) {
    gathering.by_member.resize(view_.members.size());
    gathering.missing = view_.members.size();
  }
  gathering.by_member.at(from) = bytes;
  if (--gathering.missing == 0) actions_.push_back(Reduce{chunk, round, gathering.by_member});
}

void Member::keep_result(ChunkId chunk, Round round, const SharedBytes& bytes) {
  const auto fragment = layout_.fragment_of(chunk);
  const auto chunks = layout_.chunks_of(fragment);
  auto [place, is_new] = results_.try_emplace({round, fragment});
  auto& results = place->second;
  if (is_new) {
    results.by_chunk.resize(chunks.size());
    results.missing = chunks.size();
  }
  results.by_chunk.at(chunk - chunks.first) = bytes;
  if (--results.missing == 0) actions_.push_back(Deliver{fragment, round, results.by_chunk});
}

const SharedBytes* Member::held(const ChunkKey& key) const {
  if (key.kind == ChunkKind::contribution) {
    const auto place = gathering_.find({key.round, key.chunk});
    if (place == gathering_.end()) return nullptr;
    const auto& bytes = place->second.by_member.at(key.sender);
    return bytes ? &bytes : nullptr;
  }
  const auto fragment = layout_.fragment_of(key.chunk);
  const auto place = results_.find({key.round, fragment});
  if (place == results_.end()) return nullptr;
  const auto& bytes = place->second.by_chunk.at(key.chunk - layout_.chunks_of(fragment).first);
  return bytes ? &bytes : nullptr;
}

}  // namespace isthmus::outer_sync::protocol
