#include "isthmus/outer_sync/protocol/coordinator/admission.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/protocol/shown_items.h"

namespace isthmus::outer_sync::protocol {
namespace {

using Cause = Verdict::Cause;

Verdict refused(Cause cause, std::string text) { return {Verdict::Answer::refuse, cause, std::move(text)}; }

/// Whether it belongs to this run.
Verdict compare_runs(const Hello& hello, const RunAtHello& run) {
  const auto& name = hello.member.name;
  if (!speaks_with(hello) || hello.numerics != numerics_version) {
    return refused(Cause::other_version,
                   "protocol/numerics versions are " + std::to_string(protocol_version) + "/" +
                       std::to_string(numerics_version) + " at the coordinator and " +
                       std::to_string(hello.protocol) + "/" + std::to_string(hello.numerics) + " at " + name +
                       " (build " + hello.build + "); expected protocol " + std::to_string(oldest_protocol) +
                       " to " + std::to_string(protocol_version) +
                       " and the same numerics: use the same build");
  }
  if (hello.run != run.options.run)
    return refused(Cause::other_run, "this is run '" + run.options.run + "', not '" + hello.run + "'");
  if (auto problem = problem_of(hello, run.bounds); !problem.empty())
    return refused(Cause::broken_hello,
                   (name.empty() ? "a worker" : name.substr(0, 64)) + " broke the protocol: " + problem);
  if (is_operator(name))
    return refused(Cause::operators_name,
                   "'" + name + "' is reserved for operators; give the worker another name");
  if (auto difference = config::first_difference(shown_items(run.options.config), "the coordinator",
                                                 shown_items(hello.config), name);
      !difference.empty()) {
    return refused(Cause::other_config, difference + "; all replicas must share it");
  }
  return {};
}

/// All or none of the first view's trainers must resume.
Verdict compare_resume(const Hello& hello, const RunAtHello& run) {
  const auto& name = hello.member.name;
  const auto& members = run.roster.members();
  const auto other = std::ranges::find_if(members, [&](const auto& entry) {
    return entry.first != name && trains(entry.second);  // not the same replica on an older connection
  });
  if (other == members.end() || hello.resume == other->second.hello.resume) return {};
  return refused(Cause::resume_differs,
                 (hello.resume ? "only " + name + " wants to resume"
                               : name + " does not want to resume, unlike the others") +
                     "; all or none must");
}

Verdict check_newcomer(const Hello& hello, const RunAtHello& run) {
  const bool reduces = !trains(hello.member);
  if (reduces && !run.options.elastic)
    return refused(Cause::no_use_for_reducers,
                   hello.member.name + " is a reducer, and a data-parallel run has no use for reducers");
  if (run.first_view_forms) {
    if (reduces || run.goes_back_to || !is_of_first_view(hello, run)) return {};
    return compare_resume(hello, run);
  }
  if (!run.options.elastic)
    return refused(
        Cause::no_late_joiners,
        "the run has started, and with outer.method data_parallel it does not accept late joiners");
  // A reducer needs no state, and the members may need it to relay until the end.
  if (run.is_ending && !reduces) return refused(Cause::run_is_ending, too_late);
  return {};
}

Verdict check_place(const Hello& hello, const RunAtHello& run) {
  const auto& name = hello.member.name;
  if (run.roster.find(name) == nullptr && run.roster.members().size() >= max_members)
    return refused(Cause::too_many, "there are already " + std::to_string(max_members) +
                                        " members, as many as a run can have");
  if (hello.activated > 0 && run.token_is_known && hello.token != run.options.token)
    return refused(Cause::other_token,
                   name + " has been in another run called '" + run.options.run + "'; start it again");
  if (auto problem = problem_of_report(hello.activated, hello.settings, run.announced, run.judge);
      !problem.empty())
    return refused(Cause::invalid_settings, name + " broke the protocol: " + problem);
  return hello.activated > 0 ? Verdict() : check_newcomer(hello, run);
}

Verdict check_member(const Hello& hello, const RunAtHello& run) {
  const auto& name = hello.member.name;
  if (auto verdict = compare_runs(hello, run); verdict.cause != Cause::none) return verdict;
  if (hello.member.kind != MemberKind::trainer && hello.member.kind != MemberKind::reducer)
    return refused(Cause::unknown_kind, name + " is of member kind " +
                                            std::to_string(static_cast<unsigned>(hello.member.kind)) +
                                            "; expected 0 (trainer) or 1 (reducer)");
  const auto* same = run.roster.find(name);
  if (same != nullptr && hello.member.incarnation < same->hello.member.incarnation)
    return refused(Cause::name_is_taken,
                   "a replica named '" + name + "' is already here; give each its own --name");
  if (trains(hello.member)) {
    if (auto verdict = compare_models(hello, run.roster); verdict.cause != Cause::none) return verdict;
  }
  return check_place(hello, run);
}

/// Views are stored before they are announced. So a claim of a later view, or of one with other members, is
/// invented or comes from another coordinator. Accepting it would undo the rounds of the members here.
Verdict check_claim(const Hello& hello, const RunAtHello& run) {
  // Limits a claim, so that enough numbers remain for later views.
  constexpr ViewNumber ahead = ViewNumber{1} << 20;
  const auto retry = [&](const std::string& text) {
    return Verdict{Verdict::Answer::retry, Cause::unknown_view, hello.member.name + " " + text};
  };
  const auto highest = std::max(hello.sealed, hello.activated);
  if (hello.activated > 0 && highest > std::max(highest_view / 2, run.number + ahead))
    return retry("claims to have sealed view " + std::to_string(highest) + "; the newest is " +
                 std::to_string(run.number));
  if (hello.activated == 0 || run.announced.empty() || hello.activated < run.announced.oldest()) return {};
  const auto* known = run.announced.find(hello.activated);
  if (known != nullptr && known->members.contains(id_of(hello.member))) return {};
  return retry("claims to be in view " + std::to_string(hello.activated) +
               ", which this coordinator has not announced to it (its newest is " +
               std::to_string(run.announced.newest()) +
               "); if another coordinator has, stop this one, or start it with --recover once the other has "
               "ended");
}

/// Whether the member was absent when the run returned to its checkpoints.
bool is_left_behind(const Hello& hello, const RunAtHello& run) {
  if (hello.activated == 0) return run.goes_back_to && !hello.fresh && run.first_view_forms;
  if (!run.token_is_known) return false;
  constexpr int max_attempts = 64;
  auto token = hello.token;
  for (int times = 0; times < max_attempts; ++times) {
    token = token_after(token);
    if (token == run.options.token) return true;
  }
  return false;
}

}  // namespace

void AnnouncedViews::add(const LastView& view) {
  constexpr std::size_t kept = 16;
  auto& known = views_[view.number];
  known.settings = view.settings;
  for (const auto& member : view.members) known.members.insert(id_of(member));
  if (views_.size() > kept) views_.erase(views_.begin());
}

const AnnouncedViews::View* AnnouncedViews::find(ViewNumber number) const {
  const auto place = views_.find(number);
  return place == views_.end() ? nullptr : &place->second;
}

Digest token_after(const Digest& token) {
  return Hasher()
      .update(std::string_view("goes back to its checkpoints"))
      .update(std::as_bytes(std::span(token.bytes)))
      .finish();
}

std::string problem_of_report(ViewNumber view, const Settings& settings, const AnnouncedViews& announced,
                              const SettingsJudge& judge) {
  if (view == 0) return {};  // of a checkpoint: compared and judged for the first view
  const auto* known = announced.find(view);
  if (known == nullptr) return judge.problem_of(settings);
  return settings == known->settings
             ? std::string()
             : "settings of view " + std::to_string(view) + " other than the announced ones";
}

bool may_have_begun(const Hello& hello, ViewNumber view, const AnnouncedViews& announced) {
  if (view <= hello.activated) return true;
  if (const auto* known = announced.find(view)) return known->members.contains(id_of(hello.member));
  return view <= hello.sealed && (announced.empty() || view < announced.oldest());
}

bool is_of_first_view(const Hello& hello, const RunAtHello& run) {
  if (hello.activated > 0 || !trains(hello.member)) return true;
  if (run.goes_back_to) {
    const auto& theirs = hello.checkpoints;
    const bool to_the_beginning = run.goes_back_to->step == 0;
    const bool has_it =
        to_the_beginning || (hello.resume && std::ranges::find(theirs, *run.goes_back_to) != theirs.end());
    if (!hello.fresh || !has_it) return false;
  }
  return run.roster.find(hello.member.name) != nullptr || run.roster.trainers() < run.planned;
}

Verdict compare_models(const Hello& hello, const Roster& roster) {
  const auto& name = hello.member.name;
  for (const auto& [other_name, member] : roster.members()) {
    if (other_name == name || !trains(member)) continue;
    // Checked before the model: another vocabulary also makes another model, and is the cause to fix.
    if (hello.tokenizer != member.hello.tokenizer)
      return refused(Cause::other_tokenizer,
                     "the tokenizer of " + name + " is not the tokenizer of " + other_name);
    if (hello.model != member.hello.model)
      return refused(Cause::other_model, "the model of " + name + " is not the model of " + other_name +
                                             " (names, shapes or fragments differ)");
    break;
  }
  return {};
}

Verdict admit(const Hello& hello, const RunAtHello& run) {
  const auto& name = hello.member.name;
  const bool has_begun = hello.activated > 0;
  if (run.first_view_forms && (has_begun || !hello.fresh) && !run.options.last)
    return {Verdict::Answer::retry, Cause::forgotten_run,
            name + (has_begun ? " is in view " + std::to_string(hello.activated) : " has copied the state") +
                " of this run, which this coordinator does not remember; if its disk is lost, start it with "
                "--recover"};
  if (is_left_behind(hello, run))
    return {Verdict::Answer::start_again, Cause::left_behind,
            name + " is from before the run went back to its checkpoints: it must start again"};
  if (auto verdict = check_member(hello, run); verdict.cause != Cause::none) return verdict;
  if (auto verdict = check_claim(hello, run); verdict.cause != Cause::none) return verdict;
  if (run.first_view_forms && !is_of_first_view(hello, run))
    return {Verdict::Answer::retry, Cause::not_of_first_view,
            name + " waits until the run has begun, and joins then"};
  return {};
}

Verdict admit_observer(const Hello& hello, const RunAtHello& run) {
  const auto& name = hello.member.name;
  if (auto verdict = compare_runs(hello, run); verdict.cause != Cause::none) return verdict;
  if (run.roster.find(name) != nullptr)
    return refused(Cause::name_is_taken,
                   "a replica named '" + name + "' is already here; give the observer another --name");
  if (run.is_observed_under_the_name)
    return refused(Cause::name_is_taken,
                   "an observer named '" + name +
                       "' is already here; give this one another --name, or end the other (a lost connection "
                       "counts as here for network.detect_timeout)");
  if (!run.options.elastic)
    return refused(Cause::no_rounds_to_follow, "a data-parallel run has no rounds to follow");
  if (run.observers >= max_observers)
    return refused(Cause::too_many, "there are " + std::to_string(max_observers) + " observers already");
  return compare_models(hello, run.roster);
}

}  // namespace isthmus::outer_sync::protocol
