#pragma once
// How the contributions to a round compare: the norm of each and its cosine to the mean. Owners measure the
// chunks that they reduce and add up those of a round; the coordinator adds the owners' sums, and names the
// replica whose outer gradients are far larger than the others'. Nothing here is agreed state.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync::protocol {

/// What an owner has measured while it reduced a chunk. Sums in fp64 in a fixed order (docs/numerics.md).
struct Measured {
  std::vector<double> squares;  ///< by contribution, in member order; infinite for one that does not decode
  std::vector<double> dots;     ///< by contribution, with the mean; 0 for one that does not decode
  double mean_squares = 0;
};

/// An owner's part: what it has measured of each fragment's rounds in one view.
class OwnedHealth {
 public:
  /// `owned`: by fragment, how many chunks.
  void begin(std::vector<std::uint32_t> owned);
  /// A chunk of the fragment; `contributors` in the order of the measured.
  void add(FragmentId fragment, Round round, const std::vector<ReplicaId>& contributors,
           const Measured& measured);
  /// At most one round of each fragment of which all chunks owned here are in, and none twice: of those that
  /// there are the one whose number has most factors of two, so that owners who are asked at different times
  /// name the same.
  [[nodiscard]] std::vector<RoundHealth> take();

 private:
  std::vector<std::uint32_t> owned_;
  std::map<std::pair<FragmentId, Round>, RoundHealth> open_;
  std::map<FragmentId, RoundHealth> complete_;
};

/// Of one replica in one round. A norm that is not finite is infinity, and its cosine 0.
struct ReplicaHealth {
  std::string name;
  double norm = 0;    ///< of its outer gradient of the fragment, as it decodes
  double cosine = 0;  ///< to the mean
};
/// A round of which all owners have reported; replicas in member order, but those that were late for a part.
struct RoundJudged {
  FragmentId fragment = 0;
  Round round = 0;
  std::vector<ReplicaHealth> replicas;
  std::vector<std::string> outliers;  ///< by name
};

/// The coordinator's part.
class RunHealth {
 public:
  /// Parts of older views are void.
  void begin(const View& view, const FragmentLayout& layout);
  /// What an owner says, which is checked: what does not fit the view is passed over. The round, once that
  /// was the last part of it.
  [[nodiscard]] std::optional<RoundJudged> add(ReplicaId owner, const RoundHealth& part);
  /// Lines for people since the last call: when a replica becomes an outlier, every `say_every` rounds while
  /// it is one, and when it has not been one for as many rounds as there are fragments.
  [[nodiscard]] std::vector<std::string> take_lines() { return std::exchange(lines_, {}); }

  /// A norm that many times the median is an outlier's. Healthy replicas differ by far less: they train the
  /// same model for about as many tokens.
  static constexpr double outlier_factor = 4;
  static constexpr std::uint64_t say_every = 100;

 private:
  struct Open {
    RoundHealth sum;
    std::set<ReplicaId> owners;  ///< that have reported
  };
  struct Record {
    std::uint64_t rounds = 0;  ///< as an outlier, without recovery; 0: it is none
    std::uint64_t clean = 0;   ///< since then, in a row
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
