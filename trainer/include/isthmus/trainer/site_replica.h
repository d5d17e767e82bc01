#pragma once
// A replica of several ranks: N processes on one machine that train one model, data parallel, and are one
// member of the run. Rank 0 is the member: the loader, the outer loop, checkpoints and evaluations are its
// own, and to them a SiteReplica is a Replica. The other ranks follow its orders (`follow_rank_0`): they have
// a model and their moments, and know neither the run nor the data.
//
// A step, as rank 0 and another rank see it (-> an order over a RankLink; = all of them in a collective):
//   forward_backward  -> train, with the rank's batch / N rows of ids, in the order of the loader
//                        each: forward and backward pass of its rows
//                     <- the rank's loss; the mean of all is returned
//                      = the gradient becomes the mean over ranks
//   gradients()          rank 0 alone: it may be averaged with the other members' (synchronous warm-up)
//   inner_step        -> step, with the learning rate
//                      = rank 0's gradient to all, if gradients() gave it out
//                        each: norm, clip and AdamW. With ZeRO-1 of its share alone, and then
//                      = each share of the parameters from its rank to all
//   modified          -> parameters, with the range that the outer loop has changed
//                      = rank 0's values of it to all
// So all ranks have the same parameters, bit for bit, after each of these; `copy_state` checks it. What rank
// 0 changes crosses the wide link once, and comes to the others over loopback or NVLink.
//
// The norm is of the whole mean gradient, which every rank has, in the order that its length gives
// (gradient_norm), and AdamW is elementwise: ZeRO-1 changes no bit. It saves memory, 8 (N - 1) / N bytes a
// parameter on each rank, and costs the traffic of the shares, half that of the gradients.
//
// Moments travel over the links too (checkpoints, newcomers): rank 0 gives and takes those of the whole
// buffer, so files and members do not know how many ranks there are.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/trainer/rank_group.h"
#include "isthmus/trainer/rank_link.h"
#include "isthmus/trainer/replica.h"

namespace isthmus::trainer {

/// Options of one rank's Replica, which are otherwise equal on all ranks: a shared gradient, and with `zero`
/// its share.
[[nodiscard]] ReplicaOptions rank_options(ReplicaOptions options, const ParameterTable& table,
                                          std::uint64_t rank, std::uint64_t ranks, bool zero);

class SiteReplica final : public Replica {
 public:
  struct Ranks {
    std::vector<std::unique_ptr<RankLink>> links;  ///< to ranks 1, 2, ...
    RankGroupOptions group;
    bool zero = false;
    /// Which rank's process has ended and how, for messages; empty where all run. It may wait a moment to
    /// see.
    std::function<std::string()> fate;
  };
  /// Blocks until all ranks are there with rank 0's parameters. Throws as Replica does, and as everything
  /// here does when a rank is lost: Error(network) that says which and how; what a rank itself has thrown
  /// keeps its kind.
  SiteReplica(ParameterTable table, const ReplicaOptions& options, Ranks ranks);
  /// The other ranks end.
  ~SiteReplica() override;

  /// The batch is that of all ranks: as many rows for each.
  float forward_backward(const data::Batch& batch) override;
  [[nodiscard]] std::span<float> gradients() override;
  double inner_step(double lr) override;

  void modified(outer_sync::Range range) override;
  void modified_on_device(outer_sync::Range range) override;

  [[nodiscard]] std::span<const float> first_moment(outer_sync::Range range) override;
  [[nodiscard]] std::span<const float> second_moment(outer_sync::Range range) override;
  void set_moments(outer_sync::Range range, std::span<const float> first,
                   std::span<const float> second) override;
  void set_steps(std::uint64_t steps) override;

  /// Throws Error(divergence) naming a rank whose parameters are not rank 0's.
  void copy_state(ReplicaState& state) const override;
  void restore(const ReplicaState& state) override;
  void forget_moments() override;

  /// A rank is lost: ends what waits for it. Safe from any thread.
  void abort() noexcept { group_->abort(); }

 private:
  struct Moments {
    std::vector<float> first, second;
  };
  void order(const RankOrder& order) const;
  [[nodiscard]] outer_sync::Range held_by(std::uint64_t rank) const;
  void hand_out_rows(const data::Batch& batch, std::size_t each);
  void give_parameters(outer_sync::Range range);
  [[nodiscard]] Moments gather_moments(outer_sync::Range range) const;
  /// Runs `body`; when it is a lost rank that makes it fail, says which.
  template <class Body>
  auto watched(const Body& body) const;
  [[noreturn]] void explain(const Error& error) const;

  Ranks ranks_;
  std::unique_ptr<RankGroup> group_;
  bool gave_out_gradient_ = false;
  Moments gathered_;  ///< what was given out last
};

/// All that a rank but rank 0 does, until it is told to end. `memory` is its device's. Throws Error(network)
/// when rank 0 or another rank is gone, and what the replica throws, which rank 0 is told too.
void follow_rank_0(RankLink& link, Replica& replica, const RankGroupOptions& group, bool zero,
                   data::Device& memory);

}  // namespace isthmus::trainer
