#pragma once
// A replica that takes the run's state from its members: what has come, and what of it the trainer has in its
// loop. Everything here runs on the io thread.

#include <asio/io_context.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/outer_sync/protocol/messages.h"
#include "net/member/codec_context.h"
#include "net/member/say.h"
#include "net/member/shared_state.h"
#include "net/state_transfer/state_fetcher.h"

namespace isthmus::outer_sync::transport {

/// Owns the fetcher while there is one. What comes goes to the trainer's thread as state_events; the trainer
/// says what it has learned.
class StateRecovery final : public StateFetcher::Handler {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    /// Whether this replica is ready for a view or in one: what it has then is what others count on.
    [[nodiscard]] virtual bool stands() const = 0;
    /// The trainer has all fragments, within a round of the members', in these states. Not of an observer.
    virtual void on_ready(const std::vector<protocol::FragmentState>& states,
                          const protocol::Ledger& ledger) = 0;
    /// A fragment had to be fetched anew although this replica stands already.
    virtual void on_rounds_gone() = 0;
    /// None of the donors is left. An observer keeps what is here; of others nothing counts any more.
    virtual void on_no_donors() = 0;
  };

  /// All must outlive the io context's last run. `parts`: of each fragment.
  StateRecovery(asio::io_context& io, const CodecContext& codec_context, LinkOptions link,
                WireCounters& counters, Trace& trace, StateParts parts, SharedState& meet, Say say,
                Handler& handler);

  /// Takes the state from these donors. An observer goes on with what is here where it is still that run's;
  /// any other attempt begins with nothing, and what the trainer has in hand of the one before does not
  /// count.
  void take_from(const protocol::Admitted& admitted, protocol::ReplicaId self, bool observes);
  void stop();
  /// Between `take_from` and `stop`.
  [[nodiscard]] bool takes() const { return fetcher_.has_value(); }
  /// By fragment, the newest round that any member has applied.
  void on_newest(const std::vector<protocol::Round>& rounds);

  /// The trainer has begun with this attempt (BeginAnew).
  void begun(std::uint64_t attempt);
  /// The trainer has it in the global parameters.
  void learned(FragmentId fragment, const protocol::FragmentState& state);
  /// The states of all fragments; none before the trainer has them all.
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
  SharedState& shared_;
  Say say_;
  Handler& handler_;

  std::optional<StateFetcher> fetcher_;
  bool observes_ = false;
  Digest token_;                ///< of the run that it is taken from
  std::uint64_t attempt_ = 0;   ///< to take the state
  bool trainer_is_in_ = false;  ///< the trainer has begun this attempt
  // By fragment:
  std::vector<std::optional<protocol::Round>> received_;         ///< the last that has come
  std::vector<std::optional<protocol::FragmentState>> learned_;  ///< in the global parameters here
  protocol::Ledger ledger_;                                      ///< as they came
  std::vector<protocol::Round> newest_;                          ///< of the run's members; empty: not known
};

}  // namespace isthmus::outer_sync::transport
