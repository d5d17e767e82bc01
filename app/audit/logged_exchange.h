#pragma once
// The outer loop's network in an audit: results come from a round log instead of other members, in the order
// in which the member applied them, and contributions are compared with the owners' receipts. Called by the
// thread that trains; a GPU's hand-over thread calls contribute().

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "audit/owners.h"
#include "audit/records.h"
#include "isthmus/outer_sync/engine/round_exchange.h"
#include "isthmus/outer_sync/log/log_reader.h"

namespace isthmus::app {

/// A contribution as computed here, next to what the owners received.
struct AuditedRound {
  outer_sync::FragmentId fragment = 0;
  std::uint64_t round = 0;
  std::uint64_t sent_at = 0;                      ///< agreed step
  std::uint64_t chunks = 0, equal = 0;            ///< equal: byte for byte
  std::vector<std::string> owners = {};           ///< of the chunks that differ, in bytes or weight
  double distance = 0;                            ///< |received - computed| / |computed|, estimated
  std::uint64_t weight = 0, weight_received = 0;  ///< tokens; they differ only if a chunk does
  Receipts::LedgerGap gap = {};  ///< sequences behind it that the ledgers of others do not have
  [[nodiscard]] bool is_equal() const {
    return equal == chunks && weight == weight_received && !gap.is_sure();
  }
};

class LoggedExchange final : public outer_sync::RoundExchange {
 public:
  struct Parts {
    std::string member;
    const outer_sync::FragmentLayout& layout;
    outer_sync::protocol::CodecPlan codecs;
    const Receipts& receipts;
    std::vector<outer_sync::log::LoggedFragment>& log;  ///< at the rounds of the checkpoint
    outer_sync::protocol::Settings settings;            ///< with all changes up to the end
  };
  explicit LoggedExchange(Parts parts);

  /// The agreed step of contributions from now on; and, if the member left it for the others' step, that
  /// step.
  void at_step(std::uint64_t step, std::uint64_t others = 0);
  /// From now on the loop gets the results of these rounds.
  void expect(std::deque<AuditApplied> rounds) { expected_ = std::move(rounds); }
  /// From now on a missing result is an error: the loop cannot do without it.
  void must_have_all() { must_have_all_ = true; }
  /// How many of them it has not applied yet.
  [[nodiscard]] std::size_t left() const { return expected_.size(); }
  /// Compares the contributions to rounds that were not applied in the interval, as far as the log has them.
  void compare_the_rest();
  /// The result of a round that was not applied yet; nullopt if log or receipts do not have it.
  [[nodiscard]] std::optional<outer_sync::RoundResult> outcome(outer_sync::FragmentId fragment,
                                                               std::uint64_t round);
  [[nodiscard]] const std::vector<AuditedRound>& compared() const { return compared_; }
  /// The results of the rounds that were compared, with what their owners received.
  [[nodiscard]] const OwnerAudit& owners() const { return owners_; }

  void contribute(outer_sync::ChunkId chunk, outer_sync::protocol::Round round,
                  outer_sync::protocol::SharedBytes bytes, std::uint64_t weight,
                  const SampleSet& samples) override;
  [[nodiscard]] outer_sync::Awaited wait(outer_sync::FragmentId fragment, outer_sync::protocol::Round round,
                                         bool can_train_on) override;
  void applied(outer_sync::FragmentId fragment, outer_sync::protocol::Round round, const Digest& chain,
               std::vector<SampleRange> samples) override;
  void serve_state_from(StateSource) override {}
  void serve() override {}
  [[nodiscard]] std::uint64_t agreed_step() const override { return others_; }
  [[nodiscard]] std::shared_ptr<const outer_sync::protocol::Settings> settings() const override {
    return settings_;
  }
  [[noreturn]] void give_up(const std::string& reason) override;
  [[nodiscard]] outer_sync::Reducer& reducer() override { return reducer_; }

 private:
  struct Contribution {
    outer_sync::protocol::Received made;
    std::uint64_t sent_at = 0;
    SampleSet samples = {};  ///< with the fragment's first chunk
  };

  /// An owner's receipt for the member's contribution to a chunk.
  struct Own {
    Receipts::Found in;
    const AuditReceived* received = nullptr;  ///< null: the result was made without it
    [[nodiscard]] ShortDigest bytes() const { return received->bytes.at(in.chunk); }
    [[nodiscard]] bool agrees_with(const Own& first) const;
  };

  /// Reads the log up to this round; false if it ends before.
  [[nodiscard]] bool read_to(outer_sync::FragmentId fragment, std::uint64_t round);
  [[nodiscard]] outer_sync::RoundResult result_of(outer_sync::FragmentId fragment, std::uint64_t round) const;
  void compare(outer_sync::FragmentId fragment, std::uint64_t round);
  void take_results(outer_sync::FragmentId fragment, std::uint64_t round);
  /// The contributions made here, by chunk.
  using Made = std::map<outer_sync::ChunkId, outer_sync::protocol::Received>;
  [[nodiscard]] double distance_of(std::span<const Own> lines, const Made& made) const;
  [[nodiscard]] static bool has_bytes_of(const Own& own, const Made& made);
  [[nodiscard]] bool has_receipts(outer_sync::FragmentId fragment, std::uint64_t round) const;
  [[nodiscard]] bool is_next(outer_sync::FragmentId fragment, std::uint64_t round) const;
  [[noreturn]] void refuse_round(outer_sync::FragmentId fragment, std::uint64_t round) const;
  /// One for each owner that has a receipt; there is at least one.
  [[nodiscard]] std::vector<Own> receipts_of(outer_sync::FragmentId fragment, outer_sync::ChunkId chunk,
                                             std::uint64_t round,
                                             const outer_sync::protocol::SharedBytes& result) const;

  Parts parts_;
  outer_sync::Reducer reducer_;
  std::shared_ptr<const outer_sync::protocol::Settings> settings_;
  std::uint64_t step_ = 0, others_ = 0;
  std::deque<AuditApplied> expected_;
  bool must_have_all_ = false;
  std::mutex mutex_;                                                            ///< for `made_`
  std::map<std::pair<std::uint64_t, outer_sync::ChunkId>, Contribution> made_;  ///< by round and chunk
  std::vector<AuditedRound> compared_;
  OwnerAudit owners_;
};

}  // namespace isthmus::app
