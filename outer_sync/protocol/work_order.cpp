#include "isthmus/outer_sync/protocol/work_order.h"

#include <algorithm>
#include <cassert>
#include <set>
#include <utility>

namespace isthmus::outer_sync::protocol {

SampleRange WorkOrder::Free::take(std::uint64_t most) {
  assert(!ranges_.empty() && most > 0);
  auto& front = ranges_.front();
  const SampleRange taken{front.track, front.begin, front.begin + std::min(most, front.size())};
  front.begin = taken.end;
  if (front.begin == front.end) ranges_.pop_front();
  return taken;
}

void WorkOrder::Free::skip(std::uint64_t count) {
  while (count > 0) count -= take(count).size();
}

SampleSet WorkOrder::Free::first(std::uint64_t count) const {
  SampleSet out;
  for (auto range : ranges_) {
    range.end = std::min(range.end, range.begin + count);
    out.add(range);
    count -= range.size();
    if (count == 0) break;
  }
  return out;
}

SampleRange WorkOrder::give(const SampleRange& range) {
  given_.add(range);
  return range;
}

SampleRange WorkOrder::next(std::uint64_t most) {
  if (own_only_ || orphans_.empty()) return give(own_.take(most));
  if (left_ == 0) next_turn();
  const auto range = (turn_ == 0 ? own_ : orphans_[turn_ - 1].free).take(std::min(most, left_));
  left_ -= range.size();
  return give(range);
}

/// In one cycle every trainer gets a block of each orphan, and as many blocks of its own track as there are
/// trainers for each of these.
void WorkOrder::next_turn() {
  turn_ = (turn_ + 1) % (orphans_.size() + 1);
  left_ = turn_ == 0 ? trainers_ * block : block;
  if (turn_ == 0) return;
  auto& orphan = orphans_[turn_ - 1];
  orphan.free.skip(std::exchange(orphan.skip, (trainers_ - 1) * block));
}

void WorkOrder::seal(Sealed& sealed) {
  own_only_ = true;
  given_.remove(done_everywhere(sealed.ledger));
  sealed.taken.add(given_);
  sealed.reserved = own_.first(reserved);
}

void WorkOrder::deal(const NewView& message, MemberIndex self) {
  auto shut = done_everywhere(message.ledger);
  shut.add(message.taken);
  for (std::size_t m = 0; m < message.reserved.size(); ++m) {
    if (m != self) shut.add(message.reserved[m]);
  }
  std::set<std::uint64_t> owned;
  std::uint64_t index = 0;
  trainers_ = 0;
  for (std::size_t m = 0; m < message.view.members.size(); ++m) {
    const auto& member = message.view.members[m];
    if (!trains(member)) continue;
    if (m == self) index = trainers_;
    ++trainers_;
    owned.insert(member.slot);
  }
  auto own_shut = shut;
  own_shut.add(given_);
  shut.add(message.reserved.at(self));
  orphans_.clear();
  for (std::uint64_t track = 0; track < message.tracks; ++track) {
    if (owned.contains(track)) continue;
    orphans_.push_back({Free(shut.missing(track, endless)), (track + index) % trainers_ * block});
  }
  own_ = Free(own_shut.missing(message.view.members.at(self).slot, endless));
  own_only_ = false;
  turn_ = 0;
  left_ = trainers_ * block;
}

}  // namespace isthmus::outer_sync::protocol
