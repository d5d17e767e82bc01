#pragma once
// Finds the replica whose global parameters or momentum are not those of the others: a flipped bit in its
// memory, or a program that computes otherwise. Chain hashes cover the bytes of results alone. Every member
// reports a digest of a fragment after each audited round; the coordinator compares them here, on its thread.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync::protocol {

/// Every 16th round of each fragment, and not of all fragments at once.
[[nodiscard]] constexpr bool is_audited(FragmentId fragment, Round round) {
  return (round + fragment) % 16 == 0;
}

class Audits {
 public:
  struct Difference {
    FragmentId fragment = 0;
    Round round = 0;
    std::set<std::string> odd;  ///< whose digest differs from that of more than half of the view; empty: no
                                ///< digest is that of more than half
  };
  /// `by` has reported `audit`. `trainers` are those of the view in force; what others have reported does not
  /// count. Nothing while all who have reported agree, or others may still decide.
  [[nodiscard]] std::optional<Difference> add(const std::string& by, const Audit& audit,
                                              const std::set<std::string>& trainers);
  /// Rounds of an older view may be made anew.
  void clear() { reports_.clear(); }

 private:
  static constexpr std::size_t max_open_rounds = 4;  ///< audited rounds of one fragment that are remembered
  using Reports = std::map<std::string, std::uint64_t>;
  std::map<FragmentId, std::map<Round, Reports>> reports_;
};

}  // namespace isthmus::outer_sync::protocol
