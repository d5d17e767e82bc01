#include "isthmus/outer_sync/protocol/coordinator/steering/checkpoint_orders.h"

#include <algorithm>

namespace isthmus::outer_sync::protocol {

/// Slow or full disks do not get more and more orders.
void CheckpointOrders::order(std::uint64_t step, Time now, bool disks_are_slow) {
  constexpr int longest = 16;
  wait_ = disks_are_slow ? std::min(2 * wait_, longest * interval_) : interval_;
  due_ = now + wait_;
  ordered_ = step;
}

void CheckpointOrders::missed() { steps_to_spare_ = std::min(2 * steps_to_spare_, max_steps_to_spare); }

bool CheckpointOrders::note_complete(std::uint64_t common, Time now) {
  if (common <= complete_) return false;
  complete_ = common;
  wait_ = interval_;
  due_ = now + wait_;
  steps_to_spare_ = min_steps_to_spare;
  return true;
}

bool CheckpointOrders::is_due(Time now) {
  if (interval_ == Time{}) return false;
  if (!due_) due_ = now + interval_;
  return now >= *due_;
}

void CheckpointOrders::forget() {
  ordered_ = 0;
  due_.reset();
}

}  // namespace isthmus::outer_sync::protocol
