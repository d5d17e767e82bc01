#pragma once
// Averages of local parameters in pairs, between two syncs of a fragment (outer.gossip_every): a replica and
// a partner send each other their encoded outer gradients x = global - local, and each replaces its own by
// the pair's mean, weighted by tokens as in a round, so that the sum weighted by the tokens so far stays the
// same. Formulas: docs/numerics.md. The idea is gossip (NoLoCo, arXiv 2506.10911;
// DADAO, arXiv 2208.00779) between periodic averages of all (Gossip-PGA, arXiv 2105.09080). Called by the
// trainer's thread.

#include <cstdint>
#include <optional>
#include <vector>

#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/core/schedule.h"
#include "isthmus/outer_sync/engine/outer_state.h"
#include "isthmus/outer_sync/engine/round_exchange.h"
#include "isthmus/outer_sync/engine/rounds_in_flight.h"
#include "isthmus/outer_sync/engine/unsent_work.h"

namespace isthmus::outer_sync {

/// The agreed state is not involved: the loop's rounds stay what they are, and only local parameters change.
/// An exchange ends before the fragment's next round is sent, because that round will replace what the
/// exchange would average. A part that has not arrived by then is missed, here and possibly not at the
/// partner.
class Gossip {
 public:
  struct Rule {
    std::uint64_t every = 0;  ///< outer.gossip_every; 0: no exchanges
    quant::CodecSpec codec;
    double reject = 0;  ///< outer.reject: largest ratio of the partner's norm to this replica's; 0: any
    std::uint64_t noise_seed = 0;  ///< this replica's
  };
  struct Stats {
    std::uint64_t averaged = 0;  ///< exchanges
    std::uint64_t missed = 0;    ///< the partner's part did not arrive in time
    std::uint64_t refused = 0;   ///< it did not decode, or its norm was too large
    /// The ones that have ended.
    [[nodiscard]] std::uint64_t ended() const { return averaged + missed + refused; }
  };

  /// The references must outlive it.
  Gossip(const FragmentLayout& layout, OuterState& state, RoundExchange& exchange, Trace& trace,
         const Rule& rule);

  /// Throws what the hand-over of a chunk has thrown.
  void check();
  /// Averages what is due and here, and begins exchanges. Call at each agreed step, after its rounds were
  /// applied and sent.
  void make_step(const Schedule& schedule, std::uint64_t step, RoundsInFlight& in_flight,
                 const UnsentWork& work);
  /// Whether `make_step` may begin or average something at this step.
  [[nodiscard]] bool may_act(const Schedule& schedule, std::uint64_t step) const;
  /// A round of the fragment is sent, or its state is replaced: its exchange ends.
  void forget(FragmentId p);
  void forget_all();

  [[nodiscard]] const Stats& stats() const { return stats_; }

 private:
  struct Pending {
    std::uint64_t step, due, weight;
    std::vector<protocol::SharedBytes> own = {};
    double squares = 0;       ///< of the decoded values of `own`, with outer.reject
    HandOver hand_over = {};  ///< declared last: until it is done, another thread writes `own`
  };

  [[nodiscard]] bool is_due(FragmentId p, const Schedule& schedule, std::uint64_t step) const;
  void begin(FragmentId p, std::uint64_t step, std::uint64_t due, std::uint64_t weight);
  void average(FragmentId p);
  [[nodiscard]] bool is_acceptable(FragmentId p, const Pending& pending,
                                   const protocol::Exchanged& theirs) const;

  const FragmentLayout& layout_;
  OuterState& state_;
  RoundExchange& exchange_;
  Trace& trace_;
  Rule rule_;
  std::vector<std::optional<Pending>> pending_;  ///< by fragment
  Stats stats_;
};

}  // namespace isthmus::outer_sync
