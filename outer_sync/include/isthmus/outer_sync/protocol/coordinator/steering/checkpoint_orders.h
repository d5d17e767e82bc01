#pragma once
// When all trainers write a checkpoint, and at which step (docs/protocol.md, Checkpoints). Owned by
// Coordinator, which sends the orders.

#include <cstdint>
#include <optional>

#include "isthmus/outer_sync/protocol/member.h"

namespace isthmus::outer_sync::protocol {

class CheckpointOrders {
 public:
  /// `interval`: from one complete checkpoint to the next order; 0: only on request.
  explicit CheckpointOrders(Time interval) : interval_(interval), wait_(interval) {}

  /// Step of the newest order; 0: none.
  [[nodiscard]] std::uint64_t ordered() const { return ordered_; }
  /// Step of the newest checkpoint that all trainers have had.
  [[nodiscard]] std::uint64_t complete() const { return complete_; }
  /// An order is not carried out by all yet.
  [[nodiscard]] bool is_open() const { return ordered_ > complete_; }
  /// When the next order is due; nullopt before `is_due` was called, or without an interval.
  [[nodiscard]] std::optional<Time> due() const { return due_; }
  /// Steps between what the fastest trainer has reached and the step of an order.
  [[nodiscard]] std::uint64_t steps_to_spare() const { return steps_to_spare_; }

  /// The complete checkpoint, as known from before or as the run begins with it.
  void begin_with(std::uint64_t complete) { complete_ = complete; }
  void order(std::uint64_t step, Time now, bool disks_are_slow);
  /// An open order came too late for a trainer: the next one leaves twice as many steps.
  void missed();
  /// Returns whether `common` is newer than the complete checkpoint so far.
  bool note_complete(std::uint64_t common, Time now);
  /// The first call begins the interval.
  [[nodiscard]] bool is_due(Time now);
  void postpone(Time now) { due_ = now + interval_; }
  /// The run goes back: no order counts any more.
  void forget();

 private:
  static constexpr std::uint64_t min_steps_to_spare = 2, max_steps_to_spare = 1 << 16;
  Time interval_;
  Time wait_;  ///< from one order to the next; longer while disks are slow
  std::optional<Time> due_;
  std::uint64_t ordered_ = 0, complete_ = 0;
  std::uint64_t steps_to_spare_ = min_steps_to_spare;
};

}  // namespace isthmus::outer_sync::protocol
