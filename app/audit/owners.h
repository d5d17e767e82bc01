#pragma once
// Whether the owners of chunks sent the means of what they received. Contributions are kept nowhere, but
// their sketches are in the owners' receipts, and the mean of sketches is a sketch of the mean. From the
// sketches of many results, least squares give the weights that their owner used, also if the codec lost
// much. Used by `isthmus audit`, on one thread.

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/protocol/member.h"
#include "run/audit/audit_lines.h"

namespace isthmus::app {

/// The findings about one owner.
struct OwnerVerdict {
  struct Used {
    std::string member;
    double share = 1;      ///< of the weight that its tokens give; 1: the owner counted it as it should
    double deviation = 0;  ///< standard deviation of this estimate
  };
  std::string owner;
  std::uint64_t results = 0;        ///< compared with their means; one is that of a group of chunks
  std::uint64_t chunks = 0;         ///< in these groups
  std::uint64_t not_compared = 0;   ///< chunks with results that are not in the log, or that show nothing
  std::uint64_t contradictory = 0;  ///< chunks with receipts that contradict each other
  std::uint64_t parts = 0,
                audited = 0;   ///< contributions in the means; how many were made again
  double gain = 1;             ///< of the results, along the means; 1: as long as these
  double distance = 0;         ///< |result - mean| / |mean| over all results
  std::vector<Used> used{};    ///< empty if there are too few results, or members with equal contributions
  std::uint32_t fragment = 0;  ///< of the result that is farthest from its mean
  std::uint64_t round = 0;
  double farthest = 0;                 ///< its distance
  std::vector<std::string> unknown{};  ///< members in the means that have no records in this run
  std::vector<std::string> wrong{};    ///< descriptions of what is wrong; empty if nothing is
};

class OwnerAudit {
 public:
  OwnerAudit() = default;
  explicit OwnerAudit(outer_sync::protocol::CodecPlan codecs) : codecs_(codecs) {}

  /// Takes an owner's receipts of a round, and sketches of the results in the round log by chunk, as far as
  /// the receipts are of these results. The same receipts count once.
  void add(const std::string& owner, const AuditReceipts& receipts,
           const std::map<outer_sync::ChunkId, outer_sync::protocol::Sketch>& results);
  /// A receipt of this owner for the contribution of `member` has the right bytes, with a sketch of others.
  struct FalseSketch {
    std::string owner, member;
    outer_sync::FragmentId fragment = 0;
    std::uint64_t round = 0;
    friend auto operator<=>(const FalseSketch&, const FalseSketch&) = default;
  };
  void add(FalseSketch sketch) { false_sketches_.insert(std::move(sketch)); }
  /// The contribution of this member was made again and compared.
  void add_audited(const std::string& member, outer_sync::FragmentId fragment, std::uint64_t round) {
    audited_.emplace(member, fragment, round);
  }
  void add(const OwnerAudit& other);

  /// By owner. `known`: members that have records.
  [[nodiscard]] std::vector<OwnerVerdict> verdicts(const std::set<std::string>& known) const;

 private:
  /// An owner's receipts of one round of a fragment.
  struct Received {
    std::vector<AuditReceipts> lines;
    std::map<outer_sync::ChunkId, outer_sync::protocol::Sketch> results;
  };
  using Place = std::tuple<std::string, outer_sync::FragmentId, std::uint64_t>;  // owner, fragment, round

  outer_sync::protocol::CodecPlan codecs_;
  std::map<Place, Received> received_;
  std::set<FalseSketch> false_sketches_;
  std::set<Place> audited_;  ///< with a member instead of an owner
};

}  // namespace isthmus::app
