#include "protocol/coordinator/forming/forming.h"

#include <algorithm>
#include <utility>

#include "protocol/coordinator/forming/survivors.h"

namespace isthmus::outer_sync::protocol {
namespace {

bool same_layout(const FragmentLayout& layout, const Sealed& sealed) {
  return sealed.chunk_elements == layout.chunk_elements() &&
         std::ranges::equal(sealed.layout, layout.fragments());
}

}  // namespace

Beginning choose_beginning(const Roster& roster, const CoordinatorOptions& options,
                           const std::optional<CheckpointId>& goes_back_to) {
  Beginning beginning;
  if (goes_back_to) {
    beginning.step = goes_back_to->step;
  } else if (roster.first_trainer()->hello.resume) {
    std::vector<std::vector<CheckpointId>> lists;
    for (const auto& [name, member] : roster.members()) {
      if (trains(member)) lists.push_back(member.hello.checkpoints);
    }
    const auto chosen = options.elastic ? checkpoint_to_begin_from(lists, options.min_replicas())
                                        : newest_in_all(std::move(lists));
    beginning.step = chosen.step;
    for (const auto& [name, member] : roster.members()) {
      if (trains(member) &&
          std::ranges::find(member.hello.checkpoints, chosen) == member.hello.checkpoints.end())
        beginning.without.insert(name);
    }
    if (beginning.step == 0) beginning.problem = without_common_checkpoint(roster, options);
  }
  if (options.steps > 0 && beginning.step > options.steps)
    beginning.problem = "the checkpoint to resume from is of step " + std::to_string(beginning.step) +
                        ", and run.steps is " + std::to_string(options.steps) +
                        "; raise run.steps, or move newer checkpoints away";
  return beginning;
}

std::string without_common_checkpoint(const Roster& roster, const CoordinatorOptions& options) {
  std::string newest;
  bool any = false;
  for (const auto& [name, member] : roster.members()) {
    if (!trains(member)) continue;
    const auto& own = member.hello.checkpoints;
    any = any || !own.empty();
    append(
        newest,
        name + " has " +
            (own.empty() ? "none" : "checkpoints up to step " + std::to_string(std::ranges::max(own).step)));
  }
  if (!any)
    return "no member has the run's state any more, and no replica has a checkpoint; start the run again "
           "from its first step, without --resume";
  const auto enough =
      options.elastic ? "at least " + std::to_string(options.min_replicas()) + " of the" : std::string("all");
  return "no checkpoint is complete and the same on " + enough + " replicas (" + newest +
         "); restore the missing ones, move away those of another history, or start without --resume";
}

std::string copies_without_checkpoint(const std::string& name, std::uint64_t step) {
  return name + " lacks the checkpoint of step " + std::to_string(step) +
         ": it copies the state from the others";
}

std::string initial_disagreement(const Roster& roster) {
  const auto& first = *roster.first_trainer();
  const auto& first_name = first.hello.member.name;
  const auto layout = layout_of(first.state.layout, first.state.chunk_elements);
  if (!layout) return "the fragment layout of " + first_name + " is invalid";
  for (const auto& [name, member] : roster.members()) {
    if (!trains(member) || member.has_nothing) continue;
    if (!same_layout(*layout, member.state))
      return "the fragments of " + name + " and " + first_name + " differ";
    if (member.state.settings != first.state.settings)
      return "settings changed in mid-run (isthmus ctl set) are not the same in the checkpoints of " + name +
             " and " + first_name;
    if (member.state.parameters != first.state.parameters ||
        member.state.fragments != first.state.fragments) {
      return "global parameters of " + name + " and " + first_name +
             " differ before the first step; use the same build, seed and checkpoint";
    }
  }
  return {};
}

std::optional<OtherLayout> settle_layout(std::optional<FragmentLayout>& layout, const Roster& roster) {
  const MemberStatus* reference = nullptr;
  for (const auto& [name, member] : roster.members()) {
    const bool counts = member.answered && trains(member);
    if (counts && (reference == nullptr || member.state.activated > reference->state.activated))
      reference = &member;
  }
  if (reference == nullptr) return std::nullopt;
  if (!layout) layout = layout_of(reference->state.layout, reference->state.chunk_elements);
  for (const auto& [name, member] : roster.members()) {
    if (!member.answered || member.state.layout.empty() || same_layout(*layout, member.state)) continue;
    return OtherLayout{name, reference->hello.member.name,
                       trains(member) && member.state.activated == reference->state.activated};
  }
  return std::nullopt;
}

Site site_of(const MemberStatus& member, const RunPaths::Limits& limits) {
  const auto& info = member.hello.member;
  Site site{.name = info.name, .kind = info.kind, .uplink = member.uplink};
  if (limits.slow.empty() && limits.downlinks.empty()) return site;
  const bool by_calendar = member.allowance && member.allowance->bytes_per_second > 0;
  if (const auto up = limits.uplinks.find(info.name); up != limits.uplinks.end() && !by_calendar)
    site.uplink = std::max(site.uplink, up->second);
  if (const auto down = limits.downlinks.find(info.name); down != limits.downlinks.end())
    site.downlink = down->second;
  return site;
}

std::variant<ViewPlan, Diverged> plan_next_view(const FragmentLayout& layout, const Roster& roster,
                                                TopologyRule topology, const RunPaths::Limits& limits) {
  std::vector<SealedMember> answers;
  for (const auto& [name, member] : roster.members()) {
    if (!member.answered || (member.closed && member.role == MemberStatus::Role::ready)) continue;
    const auto site = site_of(member, limits);
    answers.push_back({member.hello.member, member.state, site.uplink, site.downlink});
  }
  topology.slow = limits.slow;
  if (auto difference = disagreement(layout, answers); !difference.empty())
    return Diverged{std::move(difference)};
  return plan_view(layout, answers, topology);
}

std::uint64_t reach_of_answers(const Roster& roster) {
  std::uint64_t reach = 0;
  for (const auto& [name, member] : roster.members()) {
    if (member.answered && trains(member)) reach = std::max(reach, member.state.reach);
  }
  return reach;
}

}  // namespace isthmus::outer_sync::protocol
