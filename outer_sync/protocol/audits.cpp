#include "isthmus/outer_sync/protocol/audits.h"

#include <algorithm>

namespace isthmus::outer_sync::protocol {

std::optional<Audits::Difference> Audits::add(const std::string& by, const Audit& audit,
                                              const std::set<std::string>& trainers) {
  if (!trainers.contains(by)) return std::nullopt;
  auto& rounds = reports_[audit.fragment];
  rounds[audit.round][by] = audit.digest;
  while (rounds.size() > max_open_rounds) rounds.erase(rounds.begin());
  const auto place = rounds.find(audit.round);
  if (place == rounds.end()) return std::nullopt;  // older than all remembered rounds
  std::map<std::uint64_t, std::set<std::string>> groups;
  std::size_t reported = 0;
  for (const auto& [name, digest] : place->second) {
    if (!trainers.contains(name)) continue;
    groups[digest].insert(name);
    ++reported;
  }
  if (groups.size() < 2) return std::nullopt;
  const auto largest =
      std::ranges::max_element(groups, {}, [](const auto& group) { return group.second.size(); });
  const bool majority = 2 * largest->second.size() > trainers.size();
  if (!majority && reported < trainers.size()) return std::nullopt;
  Difference difference{audit.fragment, audit.round, {}};
  if (majority) {
    for (const auto& [digest, names] : groups) {
      if (digest != largest->first) difference.odd.insert(names.begin(), names.end());
    }
  }
  return difference;
}

}  // namespace isthmus::outer_sync::protocol
