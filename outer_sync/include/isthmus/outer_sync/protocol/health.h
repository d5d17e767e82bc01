#pragma once
// Compares the contributions to a round: the norm of each, and its cosine to the mean. Owners measure the
// chunks that they reduce, and sum over the chunks of a round. The coordinator adds the owners' sums and
// reports a replica with far larger outer gradients than the others. Nothing here is agreed state.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/messages/heartbeats.h"
#include "isthmus/outer_sync/protocol/messages/members.h"

namespace isthmus::outer_sync::protocol {

/// An owner's measurements of one chunk. Sums in fp64, in a fixed order (docs/numerics.md).
struct Measured {
  std::vector<double> squares;  ///< by contribution, in member order; infinite if it does not decode
  std::vector<double> dots;     ///< by contribution, with the mean; 0 if it does not decode
  double mean_squares = 0;
};

/// Collects an owner's measurements in one view, by fragment and round.
class OwnedHealth {
 public:
  /// `owned`: number of owned chunks by fragment.
  void begin(std::vector<std::uint32_t> owned);
  /// Adds one chunk of the fragment; `contributors` in the order of the measurements.
  void add(FragmentId fragment, Round round, const std::vector<ReplicaId>& contributors,
           const Measured& measured);
  /// Returns each complete round (all chunks owned here measured) at most once, and at most one round per
  /// fragment: the one with most factors of two in its number, so that owners asked at different times return
  /// the same round.
  [[nodiscard]] std::vector<RoundHealth> take();

 private:
  std::vector<std::uint32_t> owned_;
  std::map<std::pair<FragmentId, Round>, RoundHealth> open_;
  std::map<FragmentId, RoundHealth> complete_;
};

/// One replica in one round. A non-finite norm is infinity, and its cosine 0.
struct ReplicaHealth {
  std::string name;
  double norm = 0;    ///< of its decoded outer gradient of the fragment
  double cosine = 0;  ///< to the mean
};
/// A round reported by all owners. Replicas in member order, without replicas that were late for a chunk.
struct RoundJudged {
  FragmentId fragment = 0;
  Round round = 0;
  std::vector<ReplicaHealth> replicas;
  std::vector<std::string> outliers;  ///< by name
};

/// Adds up and judges the owners' reports; owned by the coordinator.
class RunHealth {
 public:
  /// Drops reports of older views.
  void begin(const View& view, const FragmentLayout& layout);
  /// Adds an owner's report; ignores it if it does not fit the view. Returns the round when its last report
  /// arrives.
  [[nodiscard]] std::optional<RoundJudged> add(ReplicaId owner, const RoundHealth& part);
  /// Log lines since the last call: when a replica becomes an outlier, every `say_every` rounds while it is
  /// one, and when it has recovered: when as many rounds as there are fragments were normal.
  [[nodiscard]] std::vector<std::string> take_lines() { return std::exchange(lines_, {}); }

  /// A replica is an outlier above this multiple of the median norm. Healthy replicas differ far less, since
  /// they train the same model on about the same number of tokens.
  static constexpr double outlier_factor = 4;
  static constexpr std::uint64_t say_every = 100;

 private:
  struct Open {
    RoundHealth sum;
    std::set<ReplicaId> owners;  ///< owners that have reported
  };
  struct Record {
    std::uint64_t rounds = 0;  ///< rounds as an outlier; 0: not an outlier
    std::uint64_t clean = 0;   ///< rounds since the last outlying one
  };

  [[nodiscard]] bool fits(ReplicaId owner, const RoundHealth& part) const;
  [[nodiscard]] RoundJudged judge(const RoundHealth& sum);
  void record(const RoundJudged& round, const ReplicaHealth& replica, double median);

  std::map<ReplicaId, std::string> names_;  ///< of the view's members
  std::vector<ReplicaId> order_;
  std::map<ReplicaId, std::vector<std::uint32_t>> owned_;  ///< by fragment: how many chunks
  std::vector<std::uint32_t> chunks_;                      ///< by fragment
  std::map<FragmentId, std::map<Round, Open>> open_;
  std::map<std::string, Record> records_;
  std::vector<std::string> lines_;
};

}  // namespace isthmus::outer_sync::protocol
