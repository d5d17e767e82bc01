#include "isthmus/outer_sync/protocol/exchanges.h"

#include <algorithm>

#include "isthmus/base/random.h"

namespace isthmus::outer_sync::protocol {

/// One round of a tournament in which everyone meets everyone (the circle method), drawn at random: seats i
/// and j of the first n - 1 meet if i + j = round mod n - 1, and the seat that would meet itself meets the
/// last one. With an odd number of trainers the last seat is empty.
std::optional<MemberIndex> partner_of(const View& view, MemberIndex self, FragmentId fragment,
                                      std::uint64_t step) {
  std::vector<MemberIndex> trainers;
  for (std::size_t m = 0; m < view.members.size(); ++m) {
    if (trains(view.members[m])) trainers.push_back(static_cast<MemberIndex>(m));
  }
  const auto me = std::ranges::find(trainers, self);
  if (me == trainers.end() || trainers.size() < 2) return std::nullopt;
  constexpr std::uint64_t any_seed = 0x6578636861;  // the same for all members of all runs
  const auto circle = (trainers.size() + 1) / 2 * 2 - 1;
  const auto round = random_bits(any_seed, fragment, step) % circle;
  const auto seat = static_cast<std::size_t>(me - trainers.begin());
  auto other = circle;
  if (seat == circle) {
    other = round * (circle + 1) / 2 % circle;  // the seat that would meet itself: 2 x = round mod circle
  } else if (const auto met = (round + circle - seat) % circle; met != seat) {
    other = met;
  }
  return other < trainers.size() ? std::optional(trainers[other]) : std::nullopt;
}

Exchanges::Exchanges(const FragmentLayout& layout, const CodecPlan& codecs)
    : layout_(layout), codecs_(codecs), current_(layout.fragment_count()) {}

void Exchanges::begin_view(const View& view, MemberIndex self) {
  view_ = view;
  self_ = self;
  received_.clear();
  unacknowledged_.clear();
  current_.assign(layout_.fragment_count(), {});
}

// ---- sending ----

void Exchanges::send(ChunkId chunk, std::uint64_t step, const SharedBytes& bytes, std::uint64_t weight,
                     const SharedBytes& packed) {
  const auto fragment = layout_.fragment_of(chunk);
  const auto partner = partner_of(view_, self_, fragment, step);
  if (!partner) return;
  const auto& current = current_[fragment];
  if (step < current.step) return;
  if (step > current.step || !current.begun) begin({fragment, step});
  const ChunkMessage message{.view = view_.number,
                             .key = {step, chunk, self_, ChunkKind::exchange},
                             .bytes = bytes,
                             .weight = weight};
  unacknowledged_.insert_or_assign(message.key, Sent{*partner, message});
  actions_.push_back(SendChunk{*partner, message, packed});
}

void Exchanges::begin(const Place& place) {
  end(place.first, place.second - 1);
  current_[place.first].begun = true;
  complete(place);
}

void Exchanges::end(FragmentId fragment, std::uint64_t step) {
  if (current_[fragment].step > step) return;
  current_[fragment] = {step + 1, false};
  std::erase_if(unacknowledged_,
                [&](const auto& entry) { return layout_.fragment_of(entry.first.chunk) == fragment; });
  received_.erase(received_.lower_bound({fragment, 0}), received_.lower_bound({fragment, step + 1}));
  actions_.push_back(DropUnsent{fragment, step + 1});
}

void Exchanges::acknowledged(MemberIndex from, ViewNumber view, const ChunkKey& key) {
  const auto sent = unacknowledged_.find(key);
  if (view == view_.number && sent != unacknowledged_.end() && sent->second.peer == from)
    unacknowledged_.erase(sent);
}

void Exchanges::peer_begun(MemberIndex from, ViewNumber view) {
  if (view == view_.number) repeat_to(from, [](const ChunkKey&) { return true; });
}

// ---- receiving ----

std::optional<std::string> Exchanges::receive(MemberIndex from, const ChunkMessage& message) {
  if (view_.number == 0 || message.view != view_.number) return std::nullopt;
  if (auto problem = check(from, message)) return problem;
  actions_.push_back(SendAck{from, message.view, message.key});
  const auto chunk = message.key.chunk;
  const Place place{layout_.fragment_of(chunk), message.key.round};
  if (place.second < current_[place.first].step) return std::nullopt;  // too late
  auto* const kept = room_for(place, from);
  if (kept == nullptr || kept->missing == 0) return std::nullopt;  // no room, or a repeat
  const auto first = layout_.chunks_of(place.first).first;
  auto& slot = kept->chunks[chunk - first];
  if (slot) return std::nullopt;  // a repeat
  slot = message.bytes;
  if (chunk == first) kept->weight = message.weight;
  --kept->missing;
  complete(place);
  return std::nullopt;
}

/// Later exchanges with one partner have limited room, which the lowest steps get: a partner that is far
/// ahead, or invents steps, crowds out only its own parts. Null if there is no room.
Exchanges::Received* Exchanges::room_for(const Place& place, MemberIndex from) {
  const auto [fragment, step] = place;
  if (const auto kept = received_.find(place); kept != received_.end()) return &kept->second;
  const auto first_later = current_[fragment].step + (current_[fragment].begun ? 1 : 0);
  if (step >= first_later) {
    std::vector<std::uint64_t> later;
    for (auto at = received_.lower_bound({fragment, first_later});
         at != received_.end() && at->first.first == fragment; ++at) {
      if (at->second.from == from) later.push_back(at->first.second);
    }
    if (later.size() >= max_kept) {
      if (later.back() < step) return nullptr;
      received_.erase({fragment, later.back()});
    }
  }
  const auto chunks = layout_.chunks_of(fragment).size();
  return &received_.emplace(place, Received{from, std::vector<SharedBytes>(chunks), 0, chunks}).first->second;
}

/// Hands over an exchange that has begun here and is all here. An empty entry stays, against repeats.
void Exchanges::complete(const Place& place) {
  const auto kept = received_.find(place);
  if (kept == received_.end() || kept->second.missing > 0 || kept->second.chunks.empty()) return;
  if (!current_[place.first].begun || current_[place.first].step != place.second) return;
  actions_.push_back(
      Exchanged{place.first, place.second, std::exchange(kept->second.chunks, {}), kept->second.weight});
}

std::optional<std::string> Exchanges::check(MemberIndex from, const ChunkMessage& message) const {
  const auto& [step, chunk, sender, kind] = message.key;
  if (!codecs_.exchanges) return "an exchange in a run without outer.gossip_every";
  if (kind != ChunkKind::exchange) return "a chunk of unknown kind";
  if (chunk >= layout_.chunk_count()) return "a chunk with an unknown number";
  if (sender != from) return "an exchanged chunk of another member";
  if (step <= codecs_.warmup_rounds) return "an exchange in the synchronous warm-up";
  if (partner_of(view_, self_, layout_.fragment_of(chunk), step) != from)
    return "an exchange with a member that is not its partner";
  if (!message.contributors.empty() || !message.norms.empty() || !message.trained_on.empty())
    return "an exchanged chunk with fields that only a round has";
  const auto size = quant::encoded_size(codecs_.codec, layout_.chunk(chunk).size);
  if (message.bytes->size() != size) {
    return "an exchanged chunk of " + std::to_string(message.bytes->size()) + " bytes; expected " +
           std::to_string(size);
  }
  return std::nullopt;
}

std::size_t Exchanges::chunks_held() const {
  auto sum = unacknowledged_.size();
  for (const auto& [place, received] : received_) {
    for (const auto& bytes : received.chunks) sum += bytes ? 1 : 0;
  }
  return sum;
}

}  // namespace isthmus::outer_sync::protocol
