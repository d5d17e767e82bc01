#pragma once
// The rounds that this replica has sent and not applied yet. Called by the trainer's thread; until a round's
// chunks are handed over, another thread appends to its `own`.

#include <algorithm>
#include <cstdint>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/core/schedule.h"
#include "isthmus/outer_sync/engine/chunk_transfer.h"
#include "isthmus/outer_sync/engine/round_exchange.h"

namespace isthmus::outer_sync {

/// One round of one fragment.
struct InFlight {
  FragmentId fragment;
  protocol::Round round;
  Trace::Clock::time_point sent = Trace::Clock::now();
  /// This replica's encoded chunks in order, kept until they are known to be in the result (with the
  /// carry merge until it is applied).
  std::vector<protocol::SharedBytes> own = {};
  std::optional<RoundResult> result = {};
  bool is_last = false;      ///< belongs to the final sync
  std::uint64_t weight = 0;  ///< tokens behind the contribution; 0 in the warm-up, which keeps no count
  SampleSet samples = {};    ///< sequences behind it
  std::optional<double> spread = {};  ///< before encoding, if the round is checked
  HandOver hand_over = {};            ///< declared last: until it is done, another thread writes `own`
};

/// In the order of sending.
class RoundsInFlight {
 public:
  InFlight& add(InFlight flight) { return rounds_.emplace_back(std::move(flight)); }
  /// The fragment's oldest round; null if it has none.
  [[nodiscard]] InFlight* oldest(FragmentId p) {
    const auto at = std::ranges::find(rounds_, p, &InFlight::fragment);
    return at == rounds_.end() ? nullptr : &*at;
  }
  /// Removes and returns the fragment's oldest round, which must exist.
  [[nodiscard]] InFlight take_oldest(FragmentId p) {
    const auto at = std::ranges::find(rounds_, p, &InFlight::fragment);
    auto flight = std::move(*at);
    rounds_.erase(at);
    return flight;
  }
  [[nodiscard]] std::uint64_t count(FragmentId p) const {
    return static_cast<std::uint64_t>(std::ranges::count(rounds_, p, &InFlight::fragment));
  }
  /// Whether the fragment's oldest round must be applied by this step.
  [[nodiscard]] bool is_due(FragmentId p, const Schedule& schedule, std::uint64_t step) const {
    const auto at = std::ranges::find(rounds_, p, &InFlight::fragment);
    return at != rounds_.end() && at->round <= schedule.rounds_due(p, step);
  }
  /// Whether any round must.
  [[nodiscard]] bool is_late(const Schedule& schedule, std::uint64_t step) const {
    return std::ranges::any_of(
        rounds_, [&](const InFlight& flight) { return is_due(flight.fragment, schedule, step); });
  }
  /// Whether these are exactly the rounds sent by `step` and not applied. (After the last step the final sync
  /// has applied one more.)
  [[nodiscard]] bool fit(const std::vector<protocol::FragmentState>& fragments, const Schedule& schedule,
                         std::uint64_t step) const;

  [[nodiscard]] bool empty() const { return rounds_.empty(); }
  [[nodiscard]] std::list<InFlight>& all() { return rounds_; }
  [[nodiscard]] const std::list<InFlight>& all() const { return rounds_; }
  void clear() { rounds_.clear(); }

 private:
  /// A list, because another thread may hold a reference to an element while others are added and removed.
  std::list<InFlight> rounds_;
};

}  // namespace isthmus::outer_sync
