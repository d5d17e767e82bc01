#include "net/mesh/outbox.h"

#include <algorithm>
#include <utility>

namespace isthmus::outer_sync::transport {

using namespace std::chrono_literals;

namespace {

constexpr int stall_factor = 8;  ///< times the usual delivery
constexpr int smoothing = 8;     ///< as TCP smooths its round-trip time (RFC 6298)

}  // namespace

void Outbox::enqueue(const Place& place, Frame frame, const Receipt& receipt) {
  places_.emplace(receipt, place);
  queue_.emplace(place, Queued{std::move(frame), receipt});
}

void Outbox::count(const Receipt& receipt, std::size_t bytes) {
  bytes_ += bytes;
  if (receipt.beyond != 0) relayed_[receipt.beyond] += bytes;
}

void Outbox::discount(const Receipt& receipt, std::size_t bytes) {
  bytes_ -= bytes;
  if (receipt.beyond == 0) return;
  const auto place = relayed_.find(receipt.beyond);
  if ((place->second -= bytes) == 0) relayed_.erase(place);
}

std::size_t Outbox::bytes_relayed(protocol::ReplicaId beyond) const {
  const auto place = relayed_.find(beyond);
  return place == relayed_.end() ? 0 : place->second;
}

void Outbox::put(Frame frame, std::uint64_t order, const Receipt& receipt) {
  if (places_.contains(receipt)) return;
  if (const auto sent = under_way_.find(receipt); sent != under_way_.end()) {
    discount(receipt, size_of(sent->second.frame));
    under_way_.erase(sent);
  }
  count(receipt, size_of(frame));
  enqueue({order, ++number_}, std::move(frame), receipt);
}

std::optional<Frame> Outbox::take(std::size_t lane, Time now) {
  if (queue_.empty()) return std::nullopt;
  auto first = queue_.extract(queue_.begin());
  auto& [frame, receipt] = first.mapped();
  places_.erase(receipt);
  under_way_.insert_or_assign(receipt, UnderWay{frame, first.key(), lane, now});
  return std::move(frame);
}

std::optional<Frame> Outbox::take_overdue(std::size_t lane, Time now) {
  if (!queue_.empty() || under_way_.empty()) return std::nullopt;
  const auto oldest = oldest_unheard();
  if (oldest[lane] != Time::max()) return std::nullopt;
  const auto overdue = [&](const UnderWay& sent) {
    return now - sent.since > stall_limit() && lanes_[sent.lane].heard < oldest[sent.lane];
  };
  UnderWay* first = nullptr;
  for (auto& [receipt, sent] : under_way_) {
    if (overdue(sent) && (first == nullptr || sent.place < first->place)) first = &sent;
  }
  if (first == nullptr) return std::nullopt;
  auto& taken_over = lanes_[first->lane].taken_over;
  taken_over = std::min(taken_over, first->since);
  first->lane = lane;
  first->since = now;
  return first->frame;
}

void Outbox::acknowledged(const Receipt& receipt, Time now, std::optional<std::size_t> by) {
  if (by) lanes_[*by] = {.heard = now};
  if (const auto waits = places_.find(receipt);
      waits != places_.end()) {  // the frame had arrived before its lane was lost
    const auto place = queue_.find(waits->second);
    discount(receipt, size_of(place->second.frame));
    queue_.erase(place);
    places_.erase(waits);
  }
  const auto sent = under_way_.find(receipt);
  if (sent == under_way_.end()) return;
  if (!by) lanes_[sent->second.lane] = {.heard = now};
  usual_delivery_ += (now - sent->second.since - usual_delivery_) / smoothing;
  discount(receipt, size_of(sent->second.frame));
  under_way_.erase(sent);
}

void Outbox::lane_lost(std::size_t lane) {
  for (auto sent = under_way_.begin(); sent != under_way_.end();) {
    if (sent->second.lane == lane) {
      enqueue(sent->second.place, std::move(sent->second.frame), sent->first);
      sent = under_way_.erase(sent);
    } else {
      ++sent;
    }
  }
  lanes_[lane] = {};
}

template <class Drop>
void Outbox::drop_if(Drop drop) {
  std::erase_if(queue_, [&](const auto& entry) {
    const auto& [frame, receipt] = entry.second;
    if (!drop(receipt)) return false;
    places_.erase(receipt);
    discount(receipt, size_of(frame));
    return true;
  });
  std::erase_if(under_way_, [&](const auto& entry) {
    if (!drop(entry.first)) return false;
    discount(entry.first, size_of(entry.second.frame));
    return true;
  });
}

void Outbox::view_begun(protocol::ViewNumber view) {
  drop_if([view](const Receipt& receipt) { return receipt.view < view; });
}

void Outbox::drop_exchanges(protocol::MemberIndex sender, FragmentLayout::ChunkSpan chunks,
                            std::uint64_t before) {
  drop_if([&](const Receipt& receipt) {
    return receipt.key && receipt.key->kind == protocol::ChunkKind::exchange &&
           receipt.key->sender == sender && receipt.key->chunk >= chunks.first &&
           receipt.key->chunk < chunks.last && receipt.key->round < before;
  });
}

void Outbox::forget_relayed(protocol::ReplicaId beyond) {
  drop_if([beyond](const Receipt& receipt) { return receipt.beyond == beyond; });
}

void Outbox::clear() {
  queue_.clear();
  places_.clear();
  under_way_.clear();
  relayed_.clear();
  bytes_ = 0;
}

Outbox::Time Outbox::stall_limit() const {
  return std::max<Time>(shortest_stall_, stall_factor * usual_delivery_);
}

std::vector<Outbox::Time> Outbox::oldest_unheard() const {
  std::vector<Time> oldest;
  for (const auto& lane : lanes_) oldest.push_back(lane.taken_over);
  for (const auto& [receipt, sent] : under_way_) oldest[sent.lane] = std::min(oldest[sent.lane], sent.since);
  return oldest;
}

std::vector<std::size_t> Outbox::stalled(Time now) const {
  const auto oldest = oldest_unheard();
  const auto newest = std::ranges::max(lanes_, {}, &Lane::heard).heard;
  std::vector<std::size_t> stalled;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const bool silent = oldest[lane] != Time::max() && lanes_[lane].heard < oldest[lane];
    if (silent && newest > oldest[lane] && now - oldest[lane] > stall_limit()) stalled.push_back(lane);
  }
  return stalled;
}

}  // namespace isthmus::outer_sync::transport
