#include "audit/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "isthmus/base/text.h"
#include "run/output/lines.h"
#include "worker/setup/machine_traits.h"

namespace isthmus::app {

namespace {

std::vector<AuditedRound> wrong_rounds(const AuditVerdict& verdict) {
  std::vector<AuditedRound> out;
  std::ranges::copy_if(verdict.made.rounds, std::back_inserter(out),
                       [&](const auto& round) { return verdict.is_wrong(round); });
  return out;
}

/// Names and values of the traits that differ.
std::string differences(const MachineTraits& member, const MachineTraits& here) {
  std::string out;
  for (const auto& [name, value] : member) {
    const auto own = here.find(name);
    if (own != here.end() && own->second == value) continue;
    out += fmt::format("{}{} {} (here {})", out.empty() ? "" : ", ", name, value,
                       own == here.end() ? "none" : own->second);
  }
  if (!out.empty()) return out;
  const auto deterministic = member.find(deterministic_trait);
  if (deterministic != member.end() && deterministic->second != "yes")
    return "its trainer.deterministic is false";
  return "processes on different machines made the steps";
}

const char* headline(int status) {
  if (status == 0) return "ok";
  return status == exit_status(ErrorKind::divergence) ? "WRONG" : "not audited";
}

std::string line_of(const AuditedRound& round, const std::string& member) {
  std::vector<std::string> parts;
  if (round.gap.is_sure())
    parts.push_back(fmt::format("it was trained on {} sequences that are not in the ledger, by {}",
                                round.gap.missing, fmt::join(round.gap.members, ", ")));
  if (round.equal < round.chunks || round.weight != round.weight_received)
    parts.push_back(fmt::format(
        "{} of {} chunks are not what {} should have sent; relative distance {:.2g}{}; received by {}",
        round.chunks - round.equal, round.chunks, member, round.distance,
        round.weight == round.weight_received
            ? ""
            : fmt::format(", weight {} tokens instead of {}", round.weight_received, round.weight),
        fmt::join(round.owners, ", ")));
  return fmt::format("fragment {} round {}, sent at step {}: {}", round.fragment, round.round, round.sent_at,
                     fmt::join(parts, "; "));
}

/// The first round with different contents in the records of members; null if they agree.
const AuditedRound* doubtful_round(const AuditVerdict& verdict) {
  const auto& rounds = verdict.made.rounds;
  const auto found = std::ranges::find_if(rounds, [](const auto& round) { return round.gap.is_doubtful(); });
  return found == rounds.end() ? nullptr : &*found;
}

/// Parts of the last checkpoint that are not as they should be.
std::vector<std::string> false_parts(const AuditVerdict& verdict) {
  auto parts = verdict.made.exact;
  if (verdict.is_like_machine())
    parts.insert(parts.end(), verdict.made.sections.begin(), verdict.made.sections.end());
  return parts;
}

}  // namespace

bool AuditVerdict::is_like_machine() const {
  const auto deterministic = machine.find(deterministic_trait);  // GPUs add in any order without it
  return made.machine == machine && (deterministic == machine.end() || deterministic->second == "yes");
}

bool AuditVerdict::is_wrong(const AuditedRound& round) const {
  if (is_like_machine()) return !round.is_equal();
  return round.distance > max_distance || round.weight != round.weight_received || round.gap.is_sure();
}

bool AuditVerdict::has(std::uint32_t fragment, std::uint64_t round) const {
  return std::ranges::any_of(made.rounds, [&](const auto& compared) {
    return compared.fragment == fragment && compared.round == round;
  });
}

int status_of(const OwnerVerdict& verdict) {
  if (!verdict.wrong.empty()) return exit_status(ErrorKind::divergence);
  const bool is_doubtful = verdict.contradictory > 0 || !verdict.unknown.empty();
  return is_doubtful || verdict.not_compared > verdict.chunks ? exit_status(ErrorKind::data) : 0;
}

std::string text_of(const OwnerVerdict& verdict) {
  std::string out;
  const auto add = [&out](const std::string& line, std::size_t indent) {
    out += in_lines(printable(line), indent);  // names come from other machines
  };
  add(fmt::format("{}: {} results of {} compared with the means of what it received, relative distance "
                  "{:.2g}; {} of the "
                  "{} contributions in them were made again",
                  headline(status_of(verdict)), verdict.results, verdict.owner, verdict.distance,
                  verdict.audited, verdict.parts),
      2);
  constexpr std::size_t max_listed = 10;
  for (std::size_t i = 0; i < std::min(verdict.wrong.size(), max_listed); ++i)
    add("  " + verdict.wrong[i], 4);
  if (verdict.wrong.size() > max_listed)
    add(fmt::format("  and {} more", verdict.wrong.size() - max_listed), 4);
  if (verdict.not_compared > 0)
    add(fmt::format("  {} chunks are not compared: their results are not in the log, or are mostly residuals",
                    verdict.not_compared),
        4);
  if (verdict.contradictory > 0)
    add(fmt::format("  its receipts for {} chunks contradict each other", verdict.contradictory), 4);
  if (verdict.used.empty())
    add("  no shares are estimated: there are too few results, or members with equal contributions", 4);
  if (!verdict.unknown.empty())
    add(fmt::format("  it counted contributions of members without records here: {}",
                    fmt::join(verdict.unknown, ", ")),
        4);
  return out;
}

nlohmann::ordered_json json_of(const OwnerVerdict& verdict) {
  auto shares = nlohmann::ordered_json::array();
  for (const auto& used : verdict.used)
    shares.push_back({{"member", used.member}, {"share", used.share}, {"deviation", used.deviation}});
  return {{"owner", verdict.owner},
          {"status", status_of(verdict)},
          {"results", verdict.results},
          {"chunks", verdict.chunks},
          {"not_compared", verdict.not_compared},
          {"contradictory", verdict.contradictory},
          {"contributions", verdict.parts},
          {"made_again", verdict.audited},
          {"gain", verdict.gain},
          {"distance", verdict.distance},
          {"shares", shares},
          {"farthest",
           {{"fragment", verdict.fragment}, {"round", verdict.round}, {"distance", verdict.farthest}}},
          {"unknown", verdict.unknown},
          {"wrong", verdict.wrong}};
}

int status_of(const AuditVerdict& verdict) {
  const bool wrong = !wrong_rounds(verdict).empty() || !false_parts(verdict).empty();
  if (wrong) return exit_status(ErrorKind::divergence);
  if (verdict.made.problem) return verdict.made.problem->exit_status();
  const bool has_doubts = verdict.made.rounds.empty() || doubtful_round(verdict) != nullptr;
  return has_doubts ? exit_status(ErrorKind::data) : 0;
}

std::string text_of(const AuditVerdict& verdict) {
  std::string out;
  const auto add = [&out](const std::string& line, std::size_t indent) {
    out += in_lines(printable(line), indent);  // names and traits come from other machines
  };
  const auto wrong = wrong_rounds(verdict);
  const auto& made = verdict.made;
  const bool like = verdict.is_like_machine();
  const auto status = status_of(verdict);
  const auto name =
      fmt::format("{}: {}, steps {} to {}", headline(status), verdict.member, verdict.begin, verdict.end);
  if (made.problem && wrong.empty()) {
    add(fmt::format("{}: {}", name, made.problem->what()), 2);
    return out;
  }
  add(fmt::format("{}: {} steps made again, {} contributions compared {}, {} wrong", name, made.steps,
                  made.rounds.size(), like ? "byte for byte" : "by distance", wrong.size()),
      2);
  if (!like) {
    double farthest = 0;
    for (const auto& round : made.rounds) farthest = std::max(farthest, round.distance);
    add(fmt::format(
            "  this machine may compute other bits: {}; the largest relative distance is {:.2g}, and up to "
            "{} is allowed",
            differences(verdict.machine, made.machine), farthest, AuditVerdict::max_distance),
        4);
  }
  constexpr std::size_t max_listed = 10;
  for (std::size_t i = 0; i < std::min(wrong.size(), max_listed); ++i)
    add("  " + line_of(wrong[i], verdict.member), 4);
  if (wrong.size() > max_listed) add(fmt::format("  and {} more", wrong.size() - max_listed), 4);
  if (const auto parts = false_parts(verdict); !parts.empty())
    add(fmt::format("  its checkpoint of step {} has other values than computed here in: {}", verdict.end,
                    fmt::join(parts, ", ")),
        4);
  if (const auto* round = doubtful_round(verdict))
    add(fmt::format(
            "  {} and {} recorded different sequences in round {} of fragment {}, which {} has contributed "
            "to: one of the two records is false, or the owner of the fragment's first chunk sent them "
            "different lists",
            round->gap.complete, round->gap.members.front(), round->round, round->fragment, verdict.member),
        4);
  if (made.problem)
    add(fmt::format("  the steps could not be made to their end: {}", made.problem->what()), 4);
  return out;
}

nlohmann::ordered_json json_of(const AuditVerdict& verdict) {
  auto rounds = nlohmann::ordered_json::array();
  for (const auto& round : verdict.made.rounds) {
    rounds.push_back({{"fragment", round.fragment},
                      {"round", round.round},
                      {"sent_at", round.sent_at},
                      {"chunks", round.chunks},
                      {"equal", round.equal},
                      {"owners", round.owners},
                      {"distance", round.distance},
                      {"weight", round.weight},
                      {"weight_received", round.weight_received},
                      {"not_in_ledger", round.gap.is_sure() ? round.gap.missing : 0},
                      {"ledgers_differ", round.gap.is_doubtful()},
                      {"wrong", verdict.is_wrong(round)}});
  }
  return {{"member", verdict.member},
          {"begin", verdict.begin},
          {"end", verdict.end},
          {"status", status_of(verdict)},
          {"problem", verdict.made.problem ? verdict.made.problem->what() : ""},
          {"like_machine", verdict.is_like_machine()},
          {"log", verdict.made.log.string()},
          {"steps", verdict.made.steps},
          {"rounds", rounds},
          {"sections", verdict.made.sections},
          {"exact", verdict.made.exact}};
}

}  // namespace isthmus::app
