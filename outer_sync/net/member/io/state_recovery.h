#pragma once
// Copies the run's state from its members: tracks what has arrived and what the trainer has in its loop.

#include <asio/io_context.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/outer_sync/protocol/messages/chunks.h"
#include "isthmus/outer_sync/protocol/messages/joining.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/state.h"
#include "net/member/io/codec_context.h"
#include "net/member/io/crossing.h"
#include "net/state_transfer/state_fetcher.h"

namespace isthmus::outer_sync::transport {

/// Owns the fetcher while the state is being copied. Passes what arrives to the trainer's thread as state
/// events; the trainer reports what it has applied.
class StateRecovery final : public StateFetcher::Handler {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    /// Whether this replica is ready for a view or in one. Others then count on its state.
    [[nodiscard]] virtual bool stands() const = 0;
    /// The trainer has all fragments, at most one round behind the members', in these states. Not called for
    /// observers.
    virtual void on_ready(const std::vector<protocol::FragmentState>& states,
                          const protocol::Ledger& ledger) = 0;
    /// A fragment had to be fetched again although this replica already has a state.
    virtual void on_rounds_gone() = 0;
    /// No donor is left. An observer keeps its state; other members discard theirs.
    virtual void on_no_donors() = 0;
  };

  /// All arguments must outlive the io context's last run. `parts`: the parts of each fragment to copy.
  StateRecovery(asio::io_context& io, const CodecContext& codec_context, LinkOptions link,
                WireCounters& counters, Trace& trace, StateParts parts, IoEnd shared, Say say,
                Handler& handler);

  /// Copies the state from these donors. An observer keeps the state it has if that is of the same run.
  /// Otherwise the attempt starts from nothing, and what the trainer still holds of the previous attempt is
  /// ignored.
  void take_from(const protocol::Admitted& admitted, protocol::ReplicaId self, bool observes);
  void stop();
  /// True between `take_from` and `stop`.
  [[nodiscard]] bool takes() const { return fetcher_.has_value(); }
  /// By fragment: the newest round that any member has applied.
  void on_newest(const std::vector<protocol::Round>& rounds);

  /// The trainer has begun this attempt (BeginAnew).
  void begun(std::uint64_t attempt);
  /// The trainer has applied this state to its global parameters.
  void learned(FragmentId fragment, const protocol::FragmentState& state);
  /// The states of all fragments; empty until the trainer has them all.
  [[nodiscard]] std::vector<protocol::FragmentState> whole() const;

 private:
  void on_fragment(FragmentSnapshot snapshot) override;
  void on_round(FragmentId fragment, protocol::Round round,
                std::vector<protocol::SharedBytes> results) override;
  void on_failed(const std::string& why) override;
  void count_behind();
  void say_ready_if_so();
  [[nodiscard]] protocol::Ledger ledger_of(const std::vector<protocol::FragmentState>& states) const;

  asio::io_context& io_;
  const CodecContext& codec_context_;
  LinkOptions link_;
  WireCounters& counters_;
  Trace& trace_;
  const StateParts parts_;
  const IoEnd shared_;
  Say say_;
  Handler& handler_;

  std::optional<StateFetcher> fetcher_;
  bool observes_ = false;
  Digest token_;                ///< of the run that the state is copied from
  std::uint64_t attempt_ = 0;   ///< number of this attempt to copy the state
  bool trainer_is_in_ = false;  ///< the trainer has begun this attempt
  // By fragment:
  std::vector<std::optional<protocol::Round>> received_;         ///< last round that has arrived
  std::vector<std::optional<protocol::FragmentState>> learned_;  ///< in the trainer's global parameters
  protocol::Ledger ledger_;                                      ///< as they arrived with the fragments
  std::vector<protocol::Round> newest_;                          ///< of the run's members; empty: unknown
};

}  // namespace isthmus::outer_sync::transport
