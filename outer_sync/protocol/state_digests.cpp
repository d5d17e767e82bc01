#include "isthmus/outer_sync/protocol/state_digests.h"

#include <algorithm>

namespace isthmus::outer_sync::protocol {

std::optional<StateDigests::Difference> StateDigests::add(const std::string& by, const StateDigest& reported,
                                                          const std::set<std::string>& trainers) {
  if (!trainers.contains(by)) return std::nullopt;
  auto& rounds = reports_[reported.fragment];
  rounds[reported.round][by] = reported.digest;
  while (rounds.size() > max_open_rounds) rounds.erase(rounds.begin());
  const auto place = rounds.find(reported.round);
  if (place == rounds.end()) return std::nullopt;  // older than all remembered rounds
  std::map<std::uint64_t, std::set<std::string>> groups;
  std::size_t reports = 0;
  for (const auto& [name, digest] : place->second) {
    if (!trainers.contains(name)) continue;
    groups[digest].insert(name);
    ++reports;
  }
  if (groups.size() < 2) return std::nullopt;
  const auto largest =
      std::ranges::max_element(groups, {}, [](const auto& group) { return group.second.size(); });
  const bool majority = 2 * largest->second.size() > trainers.size();
  if (!majority && reports < trainers.size()) return std::nullopt;
  Difference difference{reported.fragment, reported.round, {}};
  if (majority) {
    for (const auto& [digest, names] : groups) {
      if (digest != largest->first) difference.odd.insert(names.begin(), names.end());
    }
  }
  return difference;
}

}  // namespace isthmus::outer_sync::protocol
