#pragma once
// A replica of several ranks: N processes, on one machine or several, that train one model and are one
// member of the run. Rank 0 is the member: it has the loader, the outer loop, checkpoints and evaluations,
// which use a SiteReplica like any Replica. The other ranks follow its orders (`follow_rank_0`): they have a
// model and their moments, and know neither the run nor the data.
//
// A step on rank 0 and another rank (->: an order over a RankLink; =: a collective operation of all ranks):
//   forward_backward  -> train, with the rank's batch / N rows of ids (replica/row_balance.h)
//                        each: forward and backward pass of its rows
//                     <- the rank's loss; rank 0 returns the mean of all
//                      = the gradient becomes the mean over ranks
//   gradients()          rank 0 only: may be averaged with other members' gradients (synchronous warm-up)
//   inner_step        -> step, with the learning rate
//                      = rank 0's gradient to all, if gradients() was called
//                        each: norm, clip and AdamW; with ZeRO-1 only of its share, and then
//                      = each share of the parameters from its rank to all
//   modified          -> parameters, with the range that the outer loop changed
//                      = rank 0's values of it to all
// With average_every h > 1 a rank makes its steps with the gradient of its own rows (the mean over ranks that
// share its sequences), and after every h-th step
//                     <- an answer, with which a rank reports that its gradient is not finite
//   inner_step        -> average: the parameters become the mean over ranks (local SGD, arXiv 1805.09767)
// The same happens to a range before the outer loop reads or changes it, and to parameters and moments
// before a checkpoint. gradients() averages the gradient first.
// With group.ranks_per_sequence S > 1, S ranks at a time get the same rows, and each computes its part of
// their tokens (models/shared_sequences.h); the mean over ranks is the same mean over tokens.
//
// So after each of these (with average_every, after each average) all ranks have bit-identical parameters,
// which `copy_state` checks. Changes cross the wide-area link once, to rank 0, and reach the other ranks over
// their own network.
//
// Without average_every every rank has the whole mean gradient, its norm is added up in an order that depends
// only on its length (gradient_norm), and AdamW is elementwise: so ZeRO-1 changes no bit. It saves 8 (N - 1)
// / N bytes a parameter on each rank, and costs the traffic of the shares, half that of the gradients.
//
// With ZeRO-1 moments use the RankLinks too (checkpoints, joining members): rank 0 gives and takes those of
// the whole buffer, so files and members do not depend on the number of ranks.

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "isthmus/trainer/rank_group.h"
#include "isthmus/trainer/rank_link.h"
#include "isthmus/trainer/replica.h"

namespace isthmus::trainer {

/// The options of one rank's Replica: `options` with a shared gradient, and with `zero` the rank's share.
[[nodiscard]] ReplicaOptions rank_options(ReplicaOptions options, const ParameterTable& table,
                                          std::uint64_t rank, std::uint64_t ranks, bool zero);

class SiteReplica final : public Replica {
 public:
  struct Ranks {
    std::vector<std::shared_ptr<RankLink>> links;  ///< links to ranks 1, 2, ...
    RankGroupOptions group;
    bool zero = false;
    std::uint64_t average_every = 1;  ///< inner steps; above 1 without `zero`
    /// Returns which rank's process has ended and how; nullopt if all run. It may wait a moment to find out.
    std::function<std::optional<Error>()> fate;
  };
  /// Blocks until all ranks are ready and have rank 0's parameters. Throws like Replica. If a rank is lost,
  /// this and all other functions here throw Error(network) with the rank and how it ended; an error that a
  /// rank threw keeps its kind.
  SiteReplica(const ParameterTable& table, const ReplicaOptions& options, Ranks ranks);
  /// Ends the other ranks.
  ~SiteReplica() override;

  /// The batch is that of all ranks: equal numbers of rows for each group of ranks that share sequences.
  float forward_backward(const data::Batch& batch) override;
  [[nodiscard]] std::span<float> gradients() override;
  double inner_step(double lr) override;

  [[nodiscard]] std::span<const float> read(outer_sync::Range range) override;
  [[nodiscard]] std::span<float> modify(outer_sync::Range range) override;
  void modified(outer_sync::Range range) override;
  [[nodiscard]] std::span<float> device_values(outer_sync::Range range) override;
  void modified_on_device(outer_sync::Range range) override;

  [[nodiscard]] std::span<const float> first_moment(outer_sync::Range range) override;
  [[nodiscard]] std::span<const float> second_moment(outer_sync::Range range) override;
  void set_moments(outer_sync::Range range, std::span<const float> first,
                   std::span<const float> second) override;
  void set_steps(std::uint64_t steps) override;

  /// Throws Error(divergence) naming a rank if its parameters are not rank 0's.
  void copy_state(ReplicaState& state) override;
  void restore(const ReplicaState& state) override;
  void forget_moments() override;
  [[nodiscard]] double rank_average_seconds() const override { return average_seconds_; }

  /// Call when a rank is lost, to end operations that wait for it. Safe from any thread.
  void abort() noexcept {
    group_->abort();
    if (sequences_) sequences_->abort();
    // A rank may wait in an exchange that only its own process could abort, and so never answer.
    for (const auto& link : ranks_.links) link->abort();
  }

 private:
  struct Moments {
    std::vector<float> first, second;
  };
  void order(const RankOrder& order) const;
  [[nodiscard]] outer_sync::Range held_by(std::uint64_t rank) const;
  [[nodiscard]] data::Batch dealt(data::Batch batch);
  [[nodiscard]] std::size_t rows_for_each(const data::Batch& batch) const;
  void hand_out_rows(const data::Batch& batch, std::size_t each);
  void give_parameters(outer_sync::Range range);
  void average(outer_sync::Range range);
  void average_moments_too();
  [[nodiscard]] Moments gather_moments(outer_sync::Range range) const;
  /// Runs `body`; if that fails because a rank is lost, throws which one.
  template <class Body>
  auto watched(const Body& body) const;
  [[noreturn]] void explain(const Error& error) const;

  Ranks ranks_;
  std::unique_ptr<RankGroup> group_, sequences_;  ///< all ranks, and the ranks that share rank 0's sequences
  std::int64_t separator_;
  std::vector<const std::byte*> rows_;  ///< of the present batch, in the order in which ranks get them
  bool gave_out_gradient_ = false;
  bool equal_parameters_ = true, equal_moments_ = true;  ///< on all ranks; always, with average_every 1
  double average_seconds_ = 0;
  std::vector<outer_sync::Range> averaged_;  ///< since the last step
  Moments gathered_;                         ///< the moments that were returned last
};

/// Runs a rank other than rank 0, until rank 0 ends it. `memory` is on the replica's device. Throws
/// Error(network) if rank 0 or another rank is gone, and what the replica throws, which is also sent to rank
/// 0.
void follow_rank_0(RankLink& link, Replica& replica, const RankGroupOptions& group, bool zero,
                   data::Device& memory);

}  // namespace isthmus::trainer
