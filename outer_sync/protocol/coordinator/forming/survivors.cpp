#include "protocol/coordinator/forming/survivors.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace isthmus::outer_sync::protocol {
namespace {

using Checkpoints = std::vector<CheckpointId>;

/// The newest checkpoint in all selected lists; step 0 if fewer than `least` are selected.
template <class Select>
CheckpointId newest_of(const std::vector<Checkpoints>& lists, std::size_t least, Select select) {
  std::vector<Checkpoints> theirs;
  std::ranges::copy_if(lists, std::back_inserter(theirs), select);
  return theirs.size() >= least ? newest_in_all(std::move(theirs)) : CheckpointId{};
}

/// The trainers of the view that a recovery continues, by name, with their incarnations.
using Trainers = std::map<std::string, std::uint64_t>;
void add_trainers(Trainers& trainers, const std::vector<MemberInfo>& members) {
  for (const auto& info : members) {
    if (trains(info)) trainers.insert_or_assign(info.name, info.incarnation);
  }
}

}  // namespace

bool LastTrainers::state_is_lost(bool others_are_given_up) const {
  const auto& last = *this;
  const auto gone = last.gone();
  if (gone == 0 || last.with_state > 0) return false;
  return gone == last.in_view || (2 * gone >= last.in_view && others_are_given_up);
}

bool offers_checkpoints(const MemberStatus& member, bool repeats_warmup) {
  if (repeats_warmup) return trains(member) && member.hello.fresh;
  return trains(member) && member.hello.fresh && member.hello.resume;
}

LastTrainers count_last_trainers(const LastView& view, const Roster& roster, const Gone& gone) {
  LastTrainers last;
  for (const auto& info : view.members) {
    if (!trains(info)) continue;
    ++last.in_view;
    if (const auto* member = roster.find(info.name)) {
      const bool same =
          member->hello.member.incarnation == info.incarnation && member->role != MemberStatus::Role::joining;
      ++(same || begun(*member) > 0 ? last.with_state : last.without_state);
      if (offers_checkpoints(*member, false)) ++last.offering;
    } else if (gone.left.contains(id_of(info))) {
      ++last.left;
    } else if (gone.sent_back.contains(id_of(info))) {
      ++last.without_state;
    }
  }
  return last;
}

bool has_survivor(const LastView& view, const Roster& roster) {
  return std::ranges::any_of(view.members, [&](const MemberInfo& info) {
    const auto* member = roster.find(info.name);
    return trains(info) && member != nullptr && member->hello.member.incarnation == info.incarnation &&
           roster.able(*member);
  });
}

bool has_begun_nowhere(const LastView& view, const Roster& roster, std::size_t planned) {
  if (trainers_among(view.members) != planned) return false;
  return std::ranges::all_of(view.members, [&](const MemberInfo& info) {
    if (!trains(info)) return true;
    const auto* member = roster.find(info.name);
    return member != nullptr && begun(*member) == 0 && member->hello.member.incarnation == info.incarnation;
  });
}

bool all_are_here(const LastView& view, const Roster& roster, const std::set<ReplicaId>& left) {
  return std::ranges::all_of(view.members, [&](const MemberInfo& info) {
    const auto* member = roster.find(info.name);
    return left.contains(id_of(info)) || (member != nullptr && roster.able(*member));
  });
}

std::string missing_survivors(const LastView& view, const Roster& roster, const std::set<ReplicaId>& left,
                              std::size_t least) {
  std::size_t here = 0, may_have_it = 0;
  std::string missing;
  for (const auto& info : view.members) {
    if (!trains(info)) continue;
    const auto* member = roster.find(info.name);
    if (member != nullptr && member->hello.member.incarnation > info.incarnation) continue;
    if (member == nullptr && left.contains(id_of(info))) continue;
    ++may_have_it;
    if (member != nullptr && roster.able(*member)) {
      ++here;
    } else {
      append(missing, info.name, ",");
    }
  }
  const auto needed = std::min((may_have_it + 1) / 2, std::max<std::size_t>(least, 1));
  return here >= needed ? std::string() : missing;
}

std::optional<phase::Obstacle> reason_not_to_recover(const CoordinatorOptions& options,
                                                     const Roster& roster) {
  ViewNumber reference = 0;
  for (const auto& [name, member] : roster.members()) {
    if (member.answered && trains(member)) reference = std::max(reference, member.state.activated);
  }
  const auto& memory = options.last ? options.last : options.before;
  Trainers of_view;
  if (memory && memory->number >= reference) {
    reference = memory->number;
    add_trainers(of_view, memory->members);
  } else {
    for (const auto& [name, member] : roster.members()) {
      if (member.answered && member.state.activated == reference) add_trainers(of_view, member.state.members);
    }
  }
  std::size_t here = 0;
  std::string missing, not_named;
  for (const auto& [name, incarnation] : of_view) {
    const auto* member = roster.find(name);
    if (member != nullptr && member->answered && member->hello.member.incarnation == incarnation) {
      ++here;
      continue;
    }
    append(missing, name, ",");
    if (!options.given_up.contains(name)) append(not_named, name, ",");
  }
  const bool enough = 2 * here > of_view.size() || (memory && 2 * here == of_view.size());
  if (enough || not_named.empty()) return {};
  auto text =
      "only " + std::to_string(here) + " of " + std::to_string(of_view.size()) + " trainers of view " +
      std::to_string(reference) + " are here (missing: " + missing +
      "), and another coordinator may be running with the others. If it has ended and they are gone for "
      "good, start this one with --recover --give-up " +
      missing + ": rounds that only they have are lost, and they must copy the state from the others";
  return phase::Obstacle{phase::Obstacle::Cause::too_few_to_recover, missing, here, std::move(text)};
}

bool are_stuck_in_warmup(const LastTrainers& last, const Roster& roster, std::size_t least,
                         Round warmup_rounds) {
  const auto has_state = [](const MemberStatus& member) {
    return trains(member) && member.role != MemberStatus::Role::joining;
  };
  const auto in_warmup = [&](const MemberStatus& member) {
    return has_state(member) && !member.heartbeat.fragments.empty() && !is_past_warmup(member, warmup_rounds);
  };
  const auto here = roster.count(has_state);
  if (here == 0 || here >= least || roster.trainers() < least || roster.count(in_warmup) != here)
    return false;
  return last.with_state > 0 && 2 * (last.with_state + last.gone()) >= last.in_view;
}

phase::Obstacle reason_without_survivor(const CoordinatorOptions& options, std::uint64_t complete) {
  const bool goes_back = options.checkpoint_interval != Time{} && complete > 0;
  std::string names;
  for (const auto& info : options.last->members) {
    if (trains(info)) append(names, info.name, ",");
  }
  auto text =
      "waiting for a trainer of view " + std::to_string(options.last->number) + " (" + names +
      "), because only these may have the run's newest rounds; start one of them again. If all of them are "
      "gone for good, start the coordinator with --recover" +
      (goes_back ? ". Once half of them have been started again, the run goes back to its checkpoints "
                   "after run.checkpoint_interval"
                 : "");
  return {.cause = phase::Obstacle::Cause::no_survivor, .number = complete, .text = std::move(text)};
}

// ---- the chances of a suspended run ----

Outlook::Outlook(const CoordinatorOptions& options, const Roster& roster, const phase::Suspended* suspended,
                 const std::set<ReplicaId>& left, std::uint64_t complete, Time now)
    : options_(options), roster_(roster), suspended_(suspended), complete_(complete), now_(now) {
  if (!options.last) return;
  last_ = count_last_trainers(*options.last, roster,
                              {left, suspended != nullptr ? suspended->sent_back : std::set<ReplicaId>()});
}

bool Outlook::has_waited_for_survivors() const {
  return suspended_ != nullptr && suspended_->no_survivor_since &&
         now_ - *suspended_->no_survivor_since > options_.patience();
}

bool Outlook::others_are_given_up() const {
  return options_.checkpoint_interval != Time{} && has_waited_for_survivors();
}

bool Outlook::state_is_lost() const {
  if (suspended_ == nullptr || options_.recover || roster_.trainers() == 0) return false;
  return last_.state_is_lost(others_are_given_up() || repeats_warmup());
}

CheckpointId Outlook::newest_offered() const {
  std::vector<Checkpoints> lists;
  for (const auto& [name, member] : roster_.members()) {
    if (offers_checkpoints(member, false)) lists.push_back(member.hello.checkpoints);
  }
  const auto newest = checkpoint_to_go_back_to(lists, options_.min_replicas(), complete_);
  const bool all_had_it = complete_ > 0 && newest.step >= complete_;
  return repeats_warmup() && !all_had_it ? CheckpointId{} : newest;
}

/// If trainers of the last view are absent, the present ones may have only old checkpoints, because they were
/// absent before. So the run returns no further than to the newest checkpoint that all had. Trainers without
/// a checkpoint join when the run continues.
bool Outlook::may_go_back() const {
  const bool all_are_back = last_.offering == last_.in_view || repeats_warmup();
  if (!all_are_back && (complete_ == 0 || newest_offered().step < complete_)) return false;
  const auto& goes_back_at = suspended_->goes_back_at;
  const bool has_waited = (goes_back_at && now_ >= *goes_back_at) || others_are_given_up();
  const auto offering = roster_.count(
      [this](const MemberStatus& member) { return offers_checkpoints(member, repeats_warmup()); });
  return offering >= (has_waited ? options_.min_replicas() : options_.replicas);
}

bool Outlook::nobody_returns() const {
  return last_.left > 0 && last_.gone() == last_.in_view && has_waited_for_survivors();
}

phase::Obstacle Outlook::reason_to_wait() const {
  using Cause = phase::Obstacle::Cause;
  const auto number = std::to_string(options_.replicas);
  if (repeats_warmup())
    return {.cause = Cause::repeats_warmup,
            .text = "the run begins its warm-up again when " + number +
                    " newly started replicas are here, or fewer after network.join_timeout"};
  std::string stale;
  for (const auto& [name, member] : roster_.members()) {
    if (trains(member) && !member.hello.resume) stale += " " + name;
  }
  constexpr std::uint64_t of_all_trainers = ~std::uint64_t{0};
  std::uint64_t needed = 0;  // step
  std::string condition;
  if (last_.offering < last_.in_view && complete_ == 0) {
    needed = of_all_trainers;
    condition = ", if all trainers of the last view are among them";
  } else if (last_.offering < last_.in_view) {
    needed = complete_;
    condition = ", if they have the checkpoint of step " + std::to_string(complete_) + " or a later one";
  }
  return {.cause = Cause::returns_to_checkpoint,
          .names = stale,
          .number = needed,
          .text = "no member here has the run's state; the run goes back to its checkpoints when " + number +
                  " replicas are here that were started with --resume, or fewer after "
                  "network.join_timeout" +
                  condition + (stale.empty() ? "" : "; start again:" + stale)};
}

// ---- checkpoints ----

CheckpointId newest_in_all(std::vector<Checkpoints> lists) {
  std::optional<Checkpoints> common;
  for (auto& list : lists) {
    std::ranges::sort(list);
    Checkpoints both;
    if (common) std::ranges::set_intersection(*common, list, std::back_inserter(both));
    common = common ? std::move(both) : std::move(list);
  }
  return !common || common->empty() ? CheckpointId{} : common->back();
}

CheckpointId checkpoint_to_begin_from(const std::vector<Checkpoints>& lists, std::size_t least) {
  const auto has_any = [](const Checkpoints& own) { return !own.empty(); };
  if (const auto common = newest_of(lists, least, has_any); common.step > 0) return common;
  std::map<CheckpointId, std::size_t> holders;
  for (const auto& list : lists) {
    for (const auto& one : std::set<CheckpointId>(list.begin(), list.end())) ++holders[one];
  }
  CheckpointId chosen;
  bool has_rival = false;  // of its step, with another content
  std::size_t most = std::max<std::size_t>(least, 1);
  for (const auto& [checkpoint, count] : holders) {  // the steps ascend
    if (count < most) continue;
    has_rival = count == most && checkpoint.step == chosen.step;
    chosen = checkpoint;
    most = count;
  }
  return has_rival ? CheckpointId{} : chosen;
}

CheckpointId checkpoint_to_go_back_to(const std::vector<Checkpoints>& lists, std::size_t least,
                                      std::uint64_t complete) {
  const auto was_there = [&](const Checkpoints& own) {
    return std::ranges::any_of(own, [&](const auto& one) { return one.step >= complete; });
  };
  const auto has_that = [&](const Checkpoints& own) {
    return std::ranges::any_of(own, [&](const auto& one) { return one.step == complete; });
  };
  const auto has_any = [](const Checkpoints& own) { return !own.empty(); };
  if (const auto newest = newest_of(lists, least, was_there); newest.step > 0 && newest.step >= complete)
    return newest;
  if (const auto newest = newest_of(lists, least, has_that); newest.step > 0 && newest.step >= complete)
    return newest;
  return newest_of(lists, least, has_any);
}

}  // namespace isthmus::outer_sync::protocol
