#include "isthmus/outer_sync/protocol/topology.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace isthmus::outer_sync::protocol {
namespace {

/// Bytes sent by a member, in exchanges: `fixed` + share * `by_share`.
struct Load {
  double fixed = 0, by_share = 0;
};

std::vector<Load> loads_of(std::span<const Site> sites) {
  const auto others = static_cast<double>(sites.size()) - 1;
  std::vector<Load> loads;
  for (const auto& site : sites) {
    const bool trains = site.kind == MemberKind::trainer;
    loads.push_back(trains ? Load{1, others - 1} : Load{0, others});
  }
  return loads;
}

/// The largest share that a member can send within `time`; 1 if it sends no more for a larger share.
double share_within(const Load& load, double uplink, double time) {
  constexpr double rounding = 1e-9;
  const auto left = uplink * time - load.fixed;
  if (left < -rounding) return 0;
  return load.by_share > 0 ? std::clamp(left / load.by_share, 0.0, 1.0) : 1.0;
}

double shares_within(std::span<const Site> sites, std::span<const Load> loads, double time) {
  double sum = 0;
  for (std::size_t m = 0; m < sites.size(); ++m)
    sum += share_within(loads[m], static_cast<double>(sites[m].uplink), time);
  return sum;
}

bool is_known(const Site& site) { return site.uplink > 0; }

/// A link or path, and what it carries in one exchange: `fixed` plus for each member its share times a
/// factor.
struct Limit {
  double bytes_per_second = 0, fixed = 0;
  std::vector<std::pair<std::size_t, double>> by_share;  ///< member and factor
  [[nodiscard]] double seconds(std::span<const double> shares) const {
    double load = fixed;
    for (const auto& [member, factor] : by_share) load += factor * shares[member];
    return load / bytes_per_second;
  }
};

/// All limits of these sites. Loads are in exchanges.
std::vector<Limit> limits_of(std::span<const Site> sites, std::span<const SlowPath> slow) {
  const auto loads = loads_of(sites);
  const auto trainers = static_cast<double>(std::ranges::count(sites, MemberKind::trainer, &Site::kind));
  std::vector<Limit> limits;
  for (std::size_t m = 0; m < sites.size(); ++m) {
    limits.push_back({static_cast<double>(sites[m].uplink), loads[m].fixed, {{m, loads[m].by_share}}});
    if (sites[m].downlink == 0) continue;
    const double others = trainers - (sites[m].kind == MemberKind::trainer ? 1 : 0);
    limits.push_back({static_cast<double>(sites[m].downlink), 1, {{m, others - 1}}});
  }
  const auto place = [&](const std::string& name) {
    return static_cast<std::size_t>(std::ranges::find(sites, name, &Site::name) - sites.begin());
  };
  for (const auto& path : slow) {
    const auto from = place(path.from), to = place(path.to);
    if (from == sites.size() || to == sites.size() || path.bytes_per_second == 0) continue;
    Limit limit{static_cast<double>(path.bytes_per_second), 0, {{from, 1}}};
    if (sites[from].kind == MemberKind::trainer) limit.by_share.emplace_back(to, 1);
    limits.push_back(std::move(limit));
  }
  return limits;
}

double slowest_of(std::span<const Limit> limits, std::span<const double> shares) {
  double seconds = 0;
  for (const auto& limit : limits) seconds = std::max(seconds, limit.seconds(shares));
  return seconds;
}

/// Gives one part after the other to the member with which the slowest limit, and then the limits of that
/// member, take least time.
std::vector<double> shares_by_parts(std::span<const Site> sites, std::span<const SlowPath> slow) {
  constexpr int parts = 512;
  const auto limits = limits_of(sites, slow);
  std::vector<double> shares(sites.size(), 0);
  for (int part = 0; part < parts; ++part) {
    std::size_t best = 0;
    std::pair least{0.0, 0.0};
    for (std::size_t m = 0; m < sites.size(); ++m) {
      shares[m] += 1.0 / parts;
      double own = 0;
      for (const auto& limit : limits) {
        const bool is_own = std::ranges::any_of(
            limit.by_share, [m](const auto& entry) { return entry.first == m && entry.second > 0; });
        if (is_own) own = std::max(own, limit.seconds(shares));
      }
      const std::pair time{slowest_of(limits, shares), own};
      shares[m] -= 1.0 / parts;
      if (m > 0 && time >= least) continue;
      least = time;
      best = m;
    }
    shares[best] += 1.0 / parts;
  }
  return shares;
}

bool are_limited(std::span<const Site> sites, std::span<const SlowPath> slow) {
  return !slow.empty() || std::ranges::any_of(sites, [](const Site& site) { return site.downlink > 0; });
}

/// A reducer before a trainer, then the largest uplink, then the first.
MemberIndex hub_of(std::span<const Site> sites) {
  const auto rank = [](const Site& site) { return std::pair(site.kind == MemberKind::reducer, site.uplink); };
  return static_cast<MemberIndex>(std::ranges::max_element(sites, {}, rank) - sites.begin());
}

std::string shown(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 0.1 ? "%.3g s" : "%.2f s", seconds);
  return text;
}

struct Choice {
  std::string name, what;
  std::vector<MemberIndex> owners;
  double seconds = 0;
};

Choice mesh(const FragmentLayout& layout, std::span<const Site> sites) {
  return {"mesh", "equal shares", balanced_owners(layout, sites.size())};
}
Choice weighted(const FragmentLayout& layout, std::span<const Site> sites, std::span<const SlowPath> slow) {
  return {"weighted",
          are_limited(sites, slow) ? "shares follow the links and paths" : "shares follow the uplinks",
          owners_by_share(layout, balanced_shares(sites, slow))};
}
Choice hub_at(const FragmentLayout& layout, std::span<const Site> sites, MemberIndex owner) {
  return {"hub", sites[owner].name + " owns all chunks",
          std::vector<MemberIndex>(layout.chunk_count(), owner)};
}
Choice hub(const FragmentLayout& layout, std::span<const Site> sites) {
  return hub_at(layout, sites, hub_of(sites));
}

Deal without_uplinks(const FragmentLayout& layout, std::span<const Site> sites, Topology setting) {
  const bool reducer =
      std::ranges::any_of(sites, [](const Site& site) { return site.kind == MemberKind::reducer; });
  const bool as_hub = setting == Topology::hub || (setting == Topology::automatic && reducer);
  auto choice = as_hub ? hub(layout, sites) : mesh(layout, sites);
  return {std::move(choice.owners), choice.name + ", " + choice.what + "; not all uplinks are known"};
}

/// Another topology must be a tenth faster than the mesh: less is within the variation of uplinks.
const Choice& fastest(const std::vector<Choice>& choices) {
  const auto& best = *std::ranges::min_element(choices, {}, &Choice::seconds);
  return best.seconds <= 0.9 * choices.front().seconds ? best : choices.front();
}

}  // namespace

std::vector<MemberIndex> balanced_owners(const FragmentLayout& layout, std::size_t members) {
  std::vector<MemberIndex> owners;
  std::vector<std::uint64_t> total(members, 0);
  for (FragmentId p = 0; p < layout.fragment_count(); ++p) {
    std::vector<std::uint64_t> of_fragment(members, 0);
    const auto chunks = layout.chunks_of(p);
    for (ChunkId k = chunks.first; k < chunks.last; ++k) {
      std::size_t least = 0;
      for (std::size_t m = 1; m < members; ++m) {
        if (std::pair(of_fragment[m], total[m]) < std::pair(of_fragment[least], total[least])) least = m;
      }
      owners.push_back(static_cast<MemberIndex>(least));
      of_fragment[least] += layout.chunk(k).size;
      total[least] += layout.chunk(k).size;
    }
  }
  return owners;
}

std::vector<double> balanced_shares(std::span<const Site> sites, std::span<const SlowPath> slow) {
  if (sites.size() == 1) return {1};
  if (are_limited(sites, slow)) return shares_by_parts(sites, slow);
  const auto loads = loads_of(sites);
  // Lower bound: every member must send its contributions. From there, bisects for the time at which the
  // shares have the sum 1.
  double low = 0;
  for (std::size_t m = 0; m < sites.size(); ++m)
    low = std::max(low, loads[m].fixed / static_cast<double>(sites[m].uplink));
  double time = low;
  if (shares_within(sites, loads, low) < 1) {
    double high = 0;  // in this time any member can send everything
    for (const auto& site : sites)
      high = std::max(high, static_cast<double>(sites.size()) / static_cast<double>(site.uplink));
    constexpr int halvings = 60;  // more than the bits of a share
    for (int i = 0; i < halvings; ++i) {
      time = low + (high - low) / 2;
      (shares_within(sites, loads, time) < 1 ? low : high) = time;
    }
    time = high;
  }
  std::vector<double> shares;
  const auto sum = shares_within(sites, loads, time);
  for (std::size_t m = 0; m < sites.size(); ++m)
    shares.push_back(share_within(loads[m], static_cast<double>(sites[m].uplink), time) / sum);
  return shares;
}

std::vector<MemberIndex> owners_by_share(const FragmentLayout& layout, std::span<const double> shares) {
  std::vector<MemberIndex> owners;
  std::vector<double> lacks(shares.size(), 0);
  for (ChunkId k = 0; k < layout.chunk_count(); ++k) {
    const auto size = static_cast<double>(layout.chunk(k).size);
    for (std::size_t m = 0; m < shares.size(); ++m) lacks[m] += shares[m] * size;
    const auto owner = std::ranges::max_element(lacks) - lacks.begin();
    lacks[static_cast<std::size_t>(owner)] -= size;
    owners.push_back(static_cast<MemberIndex>(owner));
  }
  return owners;
}

double exchange_seconds(const FragmentLayout& layout, std::span<const Site> sites,
                        std::span<const MemberIndex> owners, double bits_per_element,
                        std::span<const SlowPath> slow) {
  std::vector<double> shares(sites.size(), 0);
  const auto all = static_cast<double>(layout.parameters());
  for (ChunkId k = 0; k < owners.size(); ++k)
    shares.at(owners[k]) += static_cast<double>(layout.chunk(k).size) / all;
  return slowest_of(limits_of(sites, slow), shares) * all * bits_per_element / 8;
}

Deal deal_chunks(const FragmentLayout& layout, std::span<const Site> sites, const TopologyRule& rule) {
  if (sites.size() == 1) return {balanced_owners(layout, 1), sites.front().name + " is alone"};
  if (!std::ranges::all_of(sites, is_known)) return without_uplinks(layout, sites, rule.setting);
  const auto seconds = [&](const std::vector<MemberIndex>& owners) {
    return exchange_seconds(layout, sites, owners, rule.bits_per_element, rule.slow);
  };
  std::vector<Choice> choices = {mesh(layout, sites), weighted(layout, sites, rule.slow), hub(layout, sites)};
  for (MemberIndex m = 0; m < sites.size() && are_limited(sites, rule.slow); ++m) {
    auto other = hub_at(layout, sites, m);
    if (seconds(other.owners) < seconds(choices.back().owners)) choices.back() = std::move(other);
  }
  for (auto& choice : choices) choice.seconds = seconds(choice.owners);
  const bool chosen_here = rule.setting == Topology::automatic;
  const auto& choice =
      chosen_here
          ? fastest(choices)
          : choices.at(static_cast<std::size_t>(rule.setting) - static_cast<std::size_t>(Topology::mesh));
  std::string others;
  for (const auto& other : choices) {
    if (&other != &choice) others += (others.empty() ? "" : ", ") + other.name + " " + shown(other.seconds);
  }
  return {choice.owners,
          choice.name + ", " + choice.what + ": " + shown(choice.seconds) + " per exchange (" + others + ")",
          choice.seconds};
}

}  // namespace isthmus::outer_sync::protocol
