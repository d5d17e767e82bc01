#include "isthmus/outer_sync/protocol/received.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <initializer_list>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <variant>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/core/calendar.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/view_change.h"

namespace isthmus::outer_sync::protocol {
namespace {

constexpr std::size_t longest_name = 64, longest_address = 512;
constexpr std::size_t longest_words = 16 * 1024;
constexpr std::size_t longest_summary = 1024 * 1024;
constexpr std::size_t max_fragments = std::size_t{1} << 20;  // if the layout is not known
constexpr std::uint64_t max_tokens = std::uint64_t{1} << 50;
constexpr std::uint64_t max_relay_lists = std::uint64_t{1} << 48;

std::string above(std::string_view what, std::uint64_t value, std::uint64_t most) {
  if (value <= most) return {};
  return std::string(what) + " is " + std::to_string(value) + "; expected at most " + std::to_string(most);
}

std::string too_many(std::string_view what, std::size_t count, std::size_t most) {
  if (count <= most) return {};
  return std::to_string(count) + " " + std::string(what) + "; expected at most " + std::to_string(most);
}

std::string too_long(std::string_view what, const std::string& text, std::size_t most = longest_words) {
  return too_many("characters of " + std::string(what), text.size(), most);
}

/// The first problem, if any.
std::string first_of(std::initializer_list<std::string> problems) {
  const auto* found = std::ranges::find_if(problems, [](const auto& problem) { return !problem.empty(); });
  return found == problems.end() ? std::string() : *found;
}

std::string unless(bool good, std::string_view problem) {
  return good ? std::string() : std::string(problem);
}

/// An address must be valid, or empty: then the member dials its peers.
std::string problem_of_member(const MemberInfo& member) {
  if (member.name.empty() || member.name.size() > longest_name)
    return "a name of " + std::to_string(member.name.size()) + " characters; expected 1 to " +
           std::to_string(longest_name);
  if (auto problem = too_long("an address", member.address, longest_address); !problem.empty())
    return problem;
  return unless(!can_be_dialled(member) || address_in(member.address),
                "an invalid address; expected HOST:PORT");
}

std::string problem_of_members(const std::vector<MemberInfo>& members) {
  if (auto problem = too_many("members", members.size(), max_members); !problem.empty()) return problem;
  for (const auto& member : members) {
    if (auto problem = problem_of_member(member); !problem.empty()) return problem;
  }
  return {};
}

std::string rounds_above(const std::vector<Round>& rounds, const Bounds& bounds) {
  return rounds.empty() ? std::string() : above("a round", std::ranges::max(rounds), bounds.max_round());
}

std::string problem_of_settings(const Settings& settings, const Bounds& bounds) {
  if (!settings.sound()) return "invalid settings";
  const auto step_of = [](std::uint64_t step) { return step == Settings::never ? 0 : step; };
  const auto last = settings.changes.empty() ? 0 : settings.changes.back().step;
  return first_of({above("the step of a change", last, bounds.max_step()),
                   above("the step to pause after", step_of(settings.pause_after), bounds.max_step())});
}

std::uint64_t newest_step(const std::vector<CheckpointId>& checkpoints) {
  return checkpoints.empty() ? 0 : std::ranges::max(checkpoints).step;
}

std::size_t fragments_of(const Bounds& bounds) {
  return bounds.layout != nullptr ? bounds.layout->fragment_count() : max_fragments;
}

bool is_layout(const FragmentLayout& layout, const std::vector<Range>& fragments,
               std::uint64_t chunk_elements) {
  return chunk_elements == layout.chunk_elements() && std::ranges::equal(fragments, layout.fragments());
}

/// Consecutive rounds of one fragment.
std::string problem_of_chain(const std::vector<FragmentState>& chain, FragmentId p, const Bounds& bounds) {
  const auto where = " of fragment " + std::to_string(p);
  if (chain.empty() || chain.size() > Member::history_length)
    return std::to_string(chain.size()) + " rounds" + where + "; expected 1 to " +
           std::to_string(Member::history_length);
  for (std::size_t i = 0; i < chain.size(); ++i) {
    if (auto problem = above("a round" + where, chain[i].round, bounds.max_round()); !problem.empty())
      return problem;
    if (i > 0 && chain[i].round != chain[i - 1].round + 1)
      return "round " + std::to_string(chain[i].round) + where + " after round " +
             std::to_string(chain[i - 1].round);
  }
  return {};
}

/// Checks the results that a member holds: near its last round, each round once, and contents only for rounds
/// that it has not applied.
std::string problem_of_held(const Sealed& sealed, const FragmentLayout& layout) {
  std::set<std::pair<FragmentId, Round>> seen;
  for (const auto& held : sealed.held) {
    if (held.fragment >= layout.fragment_count())
      return "results of fragment " + std::to_string(held.fragment) + " of " +
             std::to_string(layout.fragment_count());
    const auto where =
        " of round " + std::to_string(held.round) + " of fragment " + std::to_string(held.fragment);
    const auto last = sealed.fragments[held.fragment].round;
    if (held.round > last + Member::window || held.round + Member::max_held <= last)
      return "results" + where + ", and its last round is " + std::to_string(last);
    if (!held.chunks.fits(layout.chunks_of(held.fragment).size())) return "a wrong number of chunks" + where;
    if (!seen.insert({held.fragment, held.round}).second) return "results" + where + " twice";
    const bool may_tell = held.round > last && held.chunks.has(0);
    if (!are_sound(held.trained_on, max_members) || (!held.trained_on.empty() && !may_tell))
      return "invalid samples" + where;
    if (auto problem = too_many("contributors" + where, held.contributors.size(), max_members);
        !problem.empty())
      return problem;
  }
  return {};
}

std::string problem_of_rounds(const Sealed& sealed, const FragmentLayout& layout, const Bounds& bounds) {
  const auto fragments = layout.fragment_count();
  if (sealed.fragments.size() != fragments || sealed.history.size() != fragments)
    return "rounds of " + std::to_string(sealed.fragments.size()) + " and histories of " +
           std::to_string(sealed.history.size()) + " fragments; expected " + std::to_string(fragments);
  for (FragmentId p = 0; p < fragments; ++p) {
    auto chain = sealed.history[p];
    chain.push_back(sealed.fragments[p]);
    if (auto problem = problem_of_chain(chain, p, bounds); !problem.empty()) return problem;
  }
  if (!ledger_fits(sealed.ledger, sealed.fragments)) return "a ledger that does not fit its rounds";
  return problem_of_held(sealed, layout);
}

std::string problem_of_view(const NewView& message, const Bounds& bounds) {
  const auto& view = message.view;
  const auto takes_part = [](const MemberInfo& member) {
    return member.kind == MemberKind::trainer || member.kind == MemberKind::reducer;
  };
  return first_of(
      {unless(view.number > message.reference, "a view that is not later than its reference"),
       above("the view's number", view.number, highest_view), problem_of_members(view.members),
       unless(std::ranges::all_of(view.members, takes_part), "a member of a kind that is in no view"),
       unless(std::ranges::any_of(view.members, [](const auto& member) { return trains(member); }),
              "a view without a trainer"),
       unless(
           std::ranges::all_of(view.owners, [&](MemberIndex owner) { return owner < view.members.size(); }),
           "an owner that is not a member"),
       above("the agreed step", message.step, bounds.max_step()),
       above("the number of tracks", message.tracks, max_members)});
}

std::string problem_of_calendar(const std::string& text) {
  try {
    static_cast<void>(Calendar::parse(text));
    return {};
  } catch (const Error& error) {
    return std::string("an invalid calendar: ") + error.what();
  }
}

}  // namespace

// ---- messages of members ----

std::string problem_of(const Hello& hello, const Bounds& bounds) {
  return first_of(
      {problem_of_member(hello.member), too_long("a site", hello.site, longest_name),
       too_long("a build", hello.build, 256), problem_of_settings(hello.settings, bounds),
       problem_of_calendar(hello.calendar),
       too_many("checkpoints", hello.checkpoints.size(), max_checkpoints),
       above("the step of a checkpoint", newest_step(hello.checkpoints), Bounds::max_steps),
       above("the view it has sealed or begun", std::max(hello.sealed, hello.activated), highest_view)});
}

std::string problem_of(const Sealed& sealed, const Bounds& bounds) {
  if (sealed.layout.empty() && sealed.fragments.empty() && sealed.history.empty() && sealed.held.empty() &&
      sealed.activated == 0)
    return {};
  if (auto problem =
          first_of({unless(sealed.activated < sealed.view,
                           "a view that has begun and is not older than the sealed one"),
                    above("the agreed step", sealed.step, bounds.max_step()),
                    problem_of_settings(sealed.settings, bounds), problem_of_members(sealed.members),
                    unless(sealed.taken.sound() && sealed.reserved.sound(), "invalid samples")});
      !problem.empty())
    return problem;
  if (bounds.layout != nullptr) {
    if (!is_layout(*bounds.layout, sealed.layout, sealed.chunk_elements))
      return "fragments other than the run's layout";
    return problem_of_rounds(sealed, *bounds.layout, bounds);
  }
  const auto own = layout_of(sealed.layout, sealed.chunk_elements);
  return own ? problem_of_rounds(sealed, *own, bounds) : "an invalid fragment layout";
}

std::string problem_of(const Heartbeat& beat, const Bounds& bounds) {
  const auto fragments = fragments_of(bounds);
  std::vector<Round> rounds;
  for (const auto& [round, prefix] : beat.fragments) rounds.push_back(round);
  for (const auto& part : beat.health) {
    rounds.push_back(part.round);
    if (auto problem = too_many("contributors to a round", part.contributors.size(), max_members);
        !problem.empty())
      return problem;
  }
  for (const auto& reported : beat.digests) {
    rounds.push_back(reported.round);
    if (reported.fragment >= fragments)
      return "a digest of fragment " + std::to_string(reported.fragment) + " of " + std::to_string(fragments);
  }
  return first_of(
      {above("the agreed step", beat.step, bounds.max_step()), rounds_above(rounds, bounds),
       too_many("fragments", beat.fragments.size(), fragments),
       too_many("measured rounds", beat.health.size(), fragments),
       above("the number of contributors", beat.contributed, max_members),
       too_many("lost members", beat.unreachable.size(), max_members),
       too_many("relayed members", beat.relayed.size(), max_members),
       above("the number of relay lists", beat.relays, max_relay_lists),
       too_many("paths", beat.paths.size(), max_members),
       too_many("checkpoints", beat.checkpoints.size(), max_checkpoints),
       too_many("digests", beat.digests.size(), max_state_digests),
       unless(std::abs(beat.outer_gain) <= max_abs_gain, "an outer gain that is not in -1e6 to 1e6"),
       unless(std::abs(beat.outer_correlation) <= 1, "a correlation that is not in -1 to 1"),
       above("the step of a checkpoint", newest_step(beat.checkpoints), Bounds::max_steps)});
}

std::string problem_of(const CalendarChanged& changed, const Bounds&) {
  return problem_of_calendar(changed.calendar);
}

std::string problem_of(const EvalReport& report, const Bounds& bounds) {
  return first_of({above("the step of an evaluation", report.step, bounds.max_step()),
                   above("the number of evaluated tokens", report.tokens, max_tokens)});
}

std::string problem_of(const Announce& announce, const Bounds&) {
  return too_long("an announcement", announce.text);
}
std::string problem_of(const StopRequest& request, const Bounds&) {
  return too_long("a reason", request.reason);
}
std::string problem_of(const CheckpointRequest& request, const Bounds&) {
  return too_long("a reason", request.reason);
}
std::string problem_of(const Held& held, const Bounds& bounds) {
  return above("the step to hold after", held.step, bounds.max_step());
}
std::string problem_of(const Done& done, const Bounds&) {
  return too_long("a summary", done.summary, longest_summary);
}
std::string problem_of(const Leave& leave, const Bounds&) { return too_long("a reason", leave.reason); }
std::string problem_of(const Evicted& evicted, const Bounds&) { return too_long("a reason", evicted.reason); }

std::string problem_of(const Records& records, const Bounds&) {
  const auto is_sound = [](const Record& record) {
    return record.kind <= RecordKind::audit && record.line.size() <= longest_record;
  };
  return first_of({unless(!records.records.empty(), "no records"),
                   above("the number of a record", records.first, max_records),
                   unless(std::ranges::all_of(records.records, is_sound),
                          "a record of an unknown kind, or a line that is too long")});
}

// ---- messages of the coordinator ----

std::string problem_of(const Seal& seal, const Bounds& bounds) {
  return above("the step to resume from", seal.resume_step, bounds.max_step());
}

std::string problem_of(const NewView& message, const Bounds& bounds) {
  if (auto problem = problem_of_view(message, bounds); !problem.empty()) return problem;
  if (auto problem = problem_of_settings(message.settings, bounds); !problem.empty()) return problem;
  const auto own = bounds.layout != nullptr ? std::optional<FragmentLayout>()
                                            : layout_of(message.layout, message.chunk_elements);
  if (bounds.layout == nullptr && !own) return "an invalid fragment layout";
  const auto& layout = bounds.layout != nullptr ? *bounds.layout : *own;
  const auto members = message.view.members.size();
  const auto fragments = layout.fragment_count();
  const auto is_sound = [](const auto& of) { return of.sound(); };
  if (message.view.owners.size() != layout.chunk_count() || message.chains.size() != fragments ||
      message.ledger.size() != fragments || message.applied.size() != members ||
      message.reserved.size() != members)
    return "lists that do not fit the run's layout and the view's members";
  for (FragmentId p = 0; p < fragments; ++p) {
    if (auto problem = problem_of_chain(message.chains[p], p, bounds); !problem.empty()) return problem;
  }
  for (const auto& rounds : message.applied) {
    if (rounds.size() != fragments) return "rounds of a member that do not fit the run's layout";
    if (auto problem = rounds_above(rounds, bounds); !problem.empty()) return problem;
  }
  const auto is_fixed_round = [&](const FixedRound& fixed) {
    return fixed.fragment < fragments && fixed.round <= bounds.max_round() &&
           std::ranges::all_of(fixed.holders, [&](const auto& holder) {
             return holder.first < members && holder.second.fits(layout.chunks_of(fixed.fragment).size());
           });
  };
  return first_of(
      {unless(std::ranges::all_of(message.fixed, is_fixed_round), "invalid decided results"),
       unless(std::ranges::all_of(message.ledger, is_sound), "an invalid ledger"),
       unless(message.taken.sound() && std::ranges::all_of(message.reserved, is_sound), "invalid samples")});
}

std::string problem_of(const HeartbeatReply& reply, const Bounds& bounds) {
  const auto fragments = fragments_of(bounds);
  return first_of({above("the view's number", reply.view, highest_view),
                   too_many("fragments", std::max(reply.lowest.size(), reply.newest.size()), fragments),
                   rounds_above(reply.lowest, bounds), rounds_above(reply.newest, bounds),
                   above("the step of a checkpoint", reply.checkpoint, Bounds::max_steps)});
}

std::string problem_of(const StopAt& stop, const Bounds& bounds) {
  return above("the step to stop after", stop.step, bounds.max_step());
}

std::string problem_of(const CheckpointAt& checkpoint, const Bounds& bounds) {
  return above("the step of a checkpoint", checkpoint.step, bounds.max_step());
}

std::string problem_of(const Admitted& admitted, const Bounds& bounds) {
  return first_of(
      {problem_of_members(admitted.donors), problem_of_members(admitted.bridges),
       unless(std::ranges::all_of(admitted.bridges, can_be_dialled), "a bridge without an address"),
       problem_of_settings(admitted.settings, bounds)});
}

std::string problem_of(const Steered& steered, const Bounds& bounds) {
  return problem_of_settings(steered.settings, bounds);
}

std::string problem_of(const Relays& relays, const Bounds&) {
  return too_many("relays", relays.relays.size(), max_members * max_members / 2);
}

// ---- any message ----

namespace {

template <class Message>
concept Judged = requires(const Message& message, const Bounds& bounds) {
  { problem_of(message, bounds) } -> std::same_as<std::string>;
};

}  // namespace

std::string problem_of_message(const ControlMessage& message, const Bounds& bounds) {
  return std::visit(
      [&]<class Message>(const Message& body) {
        if constexpr (Judged<Message>)
          return problem_of(body, bounds);
        else
          return std::string();
      },
      message);
}

}  // namespace isthmus::outer_sync::protocol
