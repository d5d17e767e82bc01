#include "isthmus/outer_sync/protocol/view_change.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/protocol/member.h"

namespace isthmus::outer_sync::protocol {
namespace {

/// The highest view that has begun at a trainer. Reducers do not count: in a view that has begun at no
/// trainer, no round was made, and the trainers may be past what the reducer knows.
ViewNumber reference_of(std::span<const SealedMember> members) {
  ViewNumber highest = 0;
  for (const auto& member : members) {
    if (trains(member.info)) highest = std::max(highest, member.sealed.activated);
  }
  return highest;
}

/// The last applied round and the rounds before it, oldest first.
std::vector<FragmentState> chain_of(const Sealed& sealed, FragmentId p) {
  auto chain = sealed.history[p];
  chain.push_back(sealed.fragments[p]);
  return chain;
}

/// (A reducer has no rounds before its first view.)
bool is_of(const SealedMember& member, ViewNumber view) {
  return member.sealed.activated == view && (trains(member.info) || view > 0);
}

/// The rounds and results that count: of the members of the highest view that has begun at a trainer.
class Reference {
 public:
  Reference(const FragmentLayout& layout, std::span<const SealedMember> members, ViewNumber view)
      : layout_(layout), view_(view), chains_(layout.fragment_count()), ledger_(layout.fragment_count()) {
    for (const auto& member : members) {
      if (!contains(member)) continue;
      if (!settings_) settings_ = member.sealed.settings;
      step_ = std::max(step_, member.sealed.step);
      for (FragmentId p = 0; p < layout.fragment_count(); ++p) {
        if (!chains_[p].empty() && member.sealed.fragments[p].round <= newest(p)) continue;
        chains_[p] = chain_of(member.sealed, p);
        ledger_[p] = member.sealed.ledger[p];
      }
    }
    for (FragmentId p = 0; p < layout.fragment_count(); ++p) extend_back(p, members);
    for (const auto& member : members) {
      for (const auto& held : member.sealed.held) {
        if (counts(member, held)) gather(held);
      }
    }
  }

  [[nodiscard]] bool contains(const SealedMember& member) const { return is_of(member, view_); }
  [[nodiscard]] ViewNumber view() const { return view_; }
  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] Round newest(FragmentId p) const { return chains_[p].back().round; }
  [[nodiscard]] const std::vector<std::vector<FragmentState>>& chains() const { return chains_; }
  [[nodiscard]] const Ledger& ledger() const { return ledger_; }
  /// Equal for all members of the reference, as `disagreement` has checked.
  [[nodiscard]] Settings settings() const { return settings_.value_or(Settings{}); }

  /// Whether this is a trainer that has applied the newest round of every fragment.
  [[nodiscard]] bool has_all(const SealedMember& member) const {
    if (!trains(member.info)) return false;
    for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
      if (chains_[p].empty() || member.sealed.fragments[p] != chains_[p].back()) return false;
    }
    return true;
  }

  /// Makes a trainer that has all rounds a member of the reference.
  void take_in(SealedMember& member) const {
    auto& sealed = member.sealed;
    std::erase_if(sealed.held, [&](const HeldResults& held) { return !counts(member, held); });
    sealed.activated = view_;
    sealed.history = chains_;
    for (auto& chain : sealed.history) chain.pop_back();
    sealed.ledger = ledger_;
    sealed.settings = settings();
    sealed.step = std::max(sealed.step, step_);
  }

  /// Whether a member's results of a round are the run's, and stay decided in the new view. Results of a
  /// trainer outside the reference count if it has applied them and has the run's chain hash, which is made
  /// of their bytes.
  [[nodiscard]] bool counts(const SealedMember& member, const HeldResults& held) const {
    if (contains(member) || !trains(member.info)) return contains(member);
    const auto own = chain_of(member.sealed, held.fragment);
    const auto state = std::ranges::find(own, held.round, &FragmentState::round);
    const auto& chain = chains_[held.fragment];
    return state != own.end() && std::ranges::find(chain, *state) != chain.end();
  }

  /// Samples not to be trained on again: in rounds completely decided in every fragment, applied or not, and
  /// not in the ledger. Samples of a lost member in decided rounds of only some fragments stay free, or the
  /// other fragments would never get them.
  [[nodiscard]] SampleSet decided() const {
    auto rounds = ledger_;
    for (const auto& [place, round] : held_) {
      if (place.second > newest(place.first) && is_complete(round))
        rounds[place.first].add(samples_of(round.trained_on, round.contributors.value_or(Ids())));
    }
    return without(done_everywhere(rounds), done_everywhere(ledger_));
  }

  /// Why a member cannot continue from its rounds; empty if it can.
  [[nodiscard]] std::string obstacle(const SealedMember& member) const {
    if (!trains(member.info) && !contains(member)) return {};  // it begins at the newest round
    for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
      if (chains_[p].empty()) return "no member with the run's rounds is here";
      const auto& own = member.sealed.fragments[p];
      const auto where = " of fragment " + std::to_string(p);
      if (!contains(member) && std::ranges::find(chains_[p], own) == chains_[p].end()) {
        return "its round " + std::to_string(own.round) + where +
               " is not one of the run's (newest: " + std::to_string(newest(p)) + ")";
      }
      for (auto r = own.round + 1; r <= newest(p); ++r) {
        if (!complete(p, r)) return "no member holds the results of round " + std::to_string(r) + where;
      }
    }
    return {};
  }

 private:
  /// A newcomer knows no rounds before its first one. A member that has applied that round too knows those
  /// before it.
  void extend_back(FragmentId p, std::span<const SealedMember> members) {
    auto& chain = chains_[p];
    for (bool longer = !chain.empty(); std::exchange(longer, false);) {
      for (const auto& member : members) {
        if (member.sealed.fragments.empty()) continue;  // a new reducer
        const auto own = chain_of(member.sealed, p);
        const auto common = std::ranges::find(own, chain.front());
        if (common == own.begin() || common == own.end()) continue;
        chain.insert(chain.begin(), own.begin(), common);
        longer = true;
      }
    }
    if (chain.size() > Member::history_length)
      chain.erase(chain.begin(), chain.end() - Member::history_length);
  }
  using Ids = std::vector<ReplicaId>;
  /// Results of one round, held by all members that count together.
  struct Together {
    std::vector<bool> chunks;
    std::vector<TrainedOn> trained_on;
    std::optional<Ids> contributors;  ///< to all of these chunks
  };

  void gather(const HeldResults& held) {
    auto& round = held_[{held.fragment, held.round}];
    const auto chunks = layout_.chunks_of(held.fragment).size();
    round.chunks.resize(chunks, false);
    for (std::size_t i = 0; i < chunks; ++i) round.chunks[i] = round.chunks[i] || held.chunks.has(i);
    if (held.round <= newest(held.fragment)) return;
    if (round.trained_on.empty()) round.trained_on = held.trained_on;
    keep_common(round.contributors, held.contributors);
  }
  static bool is_complete(const Together& round) {
    return std::ranges::all_of(round.chunks, [](bool has) { return has; });
  }
  [[nodiscard]] bool complete(FragmentId p, Round r) const {
    const auto place = held_.find({p, r});
    return place != held_.end() && is_complete(place->second);
  }

  const FragmentLayout& layout_;
  ViewNumber view_;
  std::uint64_t step_ = 0;
  std::optional<Settings> settings_;
  std::vector<std::vector<FragmentState>> chains_;  ///< by fragment, of the foremost member
  Ledger ledger_;                                   ///< of the same member
  std::map<std::pair<FragmentId, Round>, Together> held_;
};

/// A reducer outside the reference needs nothing from before: it begins at the run's newest round, and holds
/// no results.
void place_reducers(const Reference& reference, std::vector<SealedMember>& members) {
  for (auto& member : members) {
    if (trains(member.info) || reference.contains(member)) continue;
    member.sealed.fragments.clear();
    member.sealed.held.clear();
    for (const auto& chain : reference.chains()) member.sealed.fragments.push_back(chain.back());
  }
}

/// All results that count are decided. Rounds that all members have applied are not listed.
std::vector<FixedRound> fixed_rounds(const Reference& reference, std::span<const SealedMember> members) {
  std::map<std::pair<FragmentId, Round>, FixedRound> rounds;
  for (std::size_t m = 0; m < members.size(); ++m) {
    for (const auto& held : members[m].sealed.held) {
      if (!reference.counts(members[m], held)) continue;
      auto& fixed = rounds[{held.fragment, held.round}];
      fixed.fragment = held.fragment;
      fixed.round = held.round;
      fixed.holders.emplace_back(static_cast<MemberIndex>(m), held.chunks);
    }
  }
  std::vector<FixedRound> out;
  for (auto& [place, fixed] : rounds) {
    const auto applied = [&place = place](const SealedMember& member) {
      return member.sealed.fragments[place.first].round >= place.second;
    };
    if (!std::ranges::all_of(members, applied)) out.push_back(std::move(fixed));
  }
  return out;
}

void fill_in(ViewPlan& plan, const FragmentLayout& layout, const Reference& reference,
             std::span<const SealedMember> members, const TopologyRule& topology) {
  auto& message = plan.message;
  message.layout.assign(layout.fragments().begin(), layout.fragments().end());
  message.chunk_elements = layout.chunk_elements();
  message.reference = reference.view();
  message.step = reference.step();
  message.chains = reference.chains();
  message.ledger = reference.ledger();
  message.settings = reference.settings();
  for (const auto& member : members) {
    message.taken.add(member.sealed.taken);
    message.reserved.push_back(member.sealed.reserved);
  }
  message.taken.add(reference.decided());
  message.fixed = fixed_rounds(reference, members);
  std::vector<Site> sites;
  for (const auto& member : members) {
    message.view.members.push_back(member.info);
    auto& applied = message.applied.emplace_back();
    for (const auto& fragment : member.sealed.fragments) applied.push_back(fragment.round);
    sites.push_back({member.info.name, member.info.kind, member.uplink, member.downlink});
  }
  auto deal = deal_chunks(layout, sites, topology);
  message.view.owners = std::move(deal.owners);
  plan.topology = std::move(deal.reason);
}

bool any_trains(std::span<const SealedMember> members) {
  return std::ranges::any_of(members, [](const SealedMember& member) { return trains(member.info); });
}

ViewPlan plan_from(const FragmentLayout& layout, std::vector<SealedMember> able,
                   const TopologyRule& topology) {
  ViewPlan plan;
  const auto view = reference_of(able);
  // Evicted members bring no results into the view, so the rest is checked again.
  for (;;) {
    const Reference reference(layout, able, view);
    std::vector<SealedMember> rest;
    for (auto& member : able) {
      if (auto obstacle = reference.obstacle(member); !obstacle.empty()) {
        plan.evicted.push_back({member.info.name, std::move(obstacle)});
      } else {
        rest.push_back(std::move(member));
      }
    }
    const bool settled = rest.size() == able.size();
    able = std::move(rest);
    const auto is_left = [&] {
      return std::ranges::any_of(able, [&](const auto& member) { return reference.contains(member); });
    };
    // A newcomer copies fragments from several members, so it may be the only one with all newest rounds.
    for (auto& member : able) {
      if (!is_left() && reference.has_all(member)) reference.take_in(member);
    }
    if (!any_trains(able) || !is_left()) return plan;
    if (!settled) continue;
    place_reducers(reference, able);
    fill_in(plan, layout, reference, able, topology);
    return plan;
  }
}

/// The plan without the members that `leaves` selects.
template <class Leaves>
ViewPlan plan_without(Leaves leaves, const std::string& why, const FragmentLayout& layout,
                      std::span<const SealedMember> members, const TopologyRule& topology) {
  std::vector<ViewPlan::Evicted> evicted;
  std::vector<SealedMember> rest;
  for (const auto& member : members) {
    if (leaves(member)) {
      evicted.push_back({member.info.name, why});
    } else {
      rest.push_back(member);
    }
  }
  auto plan = plan_from(layout, std::move(rest), topology);
  std::ranges::move(evicted, std::back_inserter(plan.evicted));
  return plan;
}

std::uint64_t rounds_of(const SealedMember& member) {
  std::uint64_t rounds = 0;
  for (const auto& fragment : member.sealed.fragments) rounds += fragment.round;
  return rounds;
}

}  // namespace

ViewPlan plan_view(const FragmentLayout& layout, std::span<const SealedMember> members,
                   const TopologyRule& topology) {
  auto plan = plan_from(layout, {members.begin(), members.end()}, topology);
  if (!plan.message.view.members.empty() || !any_trains(members)) return plan;
  // Rounds that only reducers know must not evict all trainers: reducers have no parameters to continue with.
  const auto reduces = [](const SealedMember& member) {
    return !trains(member.info) && member.sealed.activated > 0;
  };
  plan = plan_without(reduces, "no trainer can continue from its rounds", layout, members, topology);
  if (!plan.message.view.members.empty()) return plan;
  // Each trainer lacks rounds that the others no longer hold: the foremost continues from its own.
  const SealedMember* foremost = nullptr;
  for (const auto& member : members) {
    if (!trains(member.info)) continue;
    const auto further = [](const SealedMember& one, const SealedMember& other) {
      return std::pair(one.sealed.activated, rounds_of(one)) >
             std::pair(other.sealed.activated, rounds_of(other));
    };
    if (foremost == nullptr || further(member, *foremost)) foremost = &member;
  }
  const auto is_other = [&](const SealedMember& member) {
    return reduces(member) || (&member != foremost && member.sealed.activated == foremost->sealed.activated &&
                               trains(member.info));
  };
  const auto why =
      foremost->info.name + " is further ahead, and neither holds the results that the other lacks";
  return plan_without(is_other, why, layout, members, topology);
}

std::optional<FragmentLayout> layout_of(std::span<const Range> fragments, std::uint64_t chunk_elements) {
  constexpr std::uint64_t max_elements = 1ULL << 44;
  constexpr std::uint64_t max_chunks = 1ULL << 22;  // the lists of a NewView must fit into a control frame
  if (chunk_elements == 0) return std::nullopt;
  std::uint64_t chunks = 0;
  for (const auto& fragment : fragments) {
    if (fragment.size > max_elements || fragment.begin > max_elements) return std::nullopt;
    chunks += fragment.size / chunk_elements + 1;
    if (chunks > max_chunks) return std::nullopt;
  }
  try {
    return FragmentLayout({fragments.begin(), fragments.end()}, chunk_elements);
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool ledger_fits(const Ledger& ledger, const std::vector<FragmentState>& fragments) {
  if (ledger.size() != fragments.size()) return false;
  for (std::size_t p = 0; p < ledger.size(); ++p) {
    if (!ledger[p].sound() || ledger[p].round() != fragments[p].round) return false;
  }
  return true;
}

std::string disagreement(const FragmentLayout& layout, std::span<const SealedMember> members) {
  const auto reference = reference_of(members);
  const SealedMember* first = nullptr;
  for (const auto& member : members) {
    if (!is_of(member, reference)) continue;
    if (first == nullptr) first = &member;
    if (member.sealed.settings == first->sealed.settings) continue;
    return "settings changed in mid-run (isthmus ctl set) are not the same at " + member.info.name + " and " +
           first->info.name + ", which are both in view " + std::to_string(reference);
  }
  for (FragmentId p = 0; p < layout.fragment_count(); ++p) {
    std::map<Round, std::pair<Digest, std::string>> points;
    for (const auto& member : members) {
      if (!is_of(member, reference)) continue;
      for (const auto& state : chain_of(member.sealed, p)) {
        const auto [place, is_new] = points.try_emplace(state.round, state.chain, member.info.name);
        if (is_new || place->second.first == state.chain) continue;
        return "chain hashes of " + member.info.name + " and " + place->second.second + " differ at round " +
               std::to_string(state.round) + " of fragment " + std::to_string(p);
      }
    }
  }
  return {};
}

}  // namespace isthmus::outer_sync::protocol
