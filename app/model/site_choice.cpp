#include "model/site_choice.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace isthmus::app {

std::vector<CommonCheckpoint> common_checkpoints(std::span<const std::vector<SiteCheckpoint>> of_sites) {
  std::map<std::pair<std::uint64_t, std::string>, std::vector<CommonCheckpoint::Place>> by_state;
  std::set<std::string> workers;
  for (std::size_t site = 0; site < of_sites.size(); ++site) {
    for (const auto& checkpoint : of_sites[site]) {
      by_state[{checkpoint.step, checkpoint.agreed}].push_back({site, checkpoint});
      workers.insert(checkpoint.worker);
    }
  }
  std::vector<CommonCheckpoint> all;
  for (auto& [state, places] : by_state) all.push_back({state.first, std::move(places), workers.size()});
  const auto is_common = [](const CommonCheckpoint& one) { return 2 * one.places.size() >= one.workers; };
  std::ranges::stable_sort(all, [&](const CommonCheckpoint& a, const CommonCheckpoint& b) {
    if (is_common(a) != is_common(b)) return is_common(a);
    if (a.step != b.step) return a.step > b.step;
    return a.places.size() > b.places.size();
  });
  return all;
}

}  // namespace isthmus::app
