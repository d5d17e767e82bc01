#pragma once
// Finds a replica with global parameters or momentum other than the others', because of a flipped bit in its
// memory or a program that computes differently. Chain hashes cover only the bytes of results. Every trainer
// reports a digest of a fragment after each checked round; the coordinator compares them here, on its thread.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/state.h"

namespace isthmus::outer_sync::protocol {

/// True for every 16th round of each fragment, at different rounds for different fragments.
[[nodiscard]] constexpr bool is_checked(FragmentId fragment, Round round) {
  return (round + fragment) % 16 == 0;
}

class StateDigests {
 public:
  struct Difference {
    FragmentId fragment = 0;
    Round round = 0;
    /// Members that differ from a digest shared by more than half of the view; empty: no digest has such a
    /// majority.
    std::set<std::string> odd;
  };
  /// Takes a report of member `by`. `trainers`: of the current view; reports of others do not count. Returns
  /// nothing while all reports agree, or while missing reports may still give a majority.
  [[nodiscard]] std::optional<Difference> add(const std::string& by, const StateDigest& reported,
                                              const std::set<std::string>& trainers);
  /// Call when a view begins: rounds of older views may be repeated.
  void clear() { reports_.clear(); }

 private:
  static constexpr std::size_t max_open_rounds = 4;  ///< checked rounds remembered per fragment
  using Reports = std::map<std::string, std::uint64_t>;
  std::map<FragmentId, std::map<Round, Reports>> reports_;
};

}  // namespace isthmus::outer_sync::protocol
