#include "audit/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "run/output/lines.h"

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
  return out.empty() ? "its processes ran on different machines" : out;
}

std::string line_of(const AuditedRound& round, const std::string& member) {
  return fmt::format(
      "fragment {} round {}, sent at step {}: {} of {} chunks are not what {} should have sent; relative "
      "distance {:.2g}{}; received by {}",
      round.fragment, round.round, round.sent_at, round.chunks - round.equal, round.chunks, member,
      round.distance,
      round.weight == round.weight_received
          ? ""
          : fmt::format(", weight {} tokens instead of {}", round.weight_received, round.weight),
      fmt::join(round.owners, ", "));
}

}  // namespace

bool AuditVerdict::is_wrong(const AuditedRound& round) const {
  if (is_like_machine()) return !round.is_equal();
  return round.distance > max_distance || round.weight != round.weight_received;
}

int status_of(const AuditVerdict& verdict) {
  if (verdict.problem) return verdict.problem->exit_status();
  const bool wrong =
      !wrong_rounds(verdict).empty() || (verdict.is_like_machine() && !verdict.made.sections.empty());
  return wrong ? exit_status(ErrorKind::divergence) : 0;
}

std::string text_of(const AuditVerdict& verdict) {
  std::string out;
  const auto add = [&out](const std::string& line, std::size_t indent) { out += in_lines(line, indent); };
  const auto name = fmt::format("{}, steps {} to {}", verdict.member, verdict.begin, verdict.end);
  if (verdict.problem) {
    const bool wrong = verdict.problem->kind() == ErrorKind::divergence;
    add(fmt::format("{}: {}: {}", wrong ? "WRONG" : "not audited", name, verdict.problem->what()), 2);
    return out;
  }
  const auto wrong = wrong_rounds(verdict);
  const auto& made = verdict.made;
  const bool like = verdict.is_like_machine();
  add(fmt::format("{}: {}: {} steps made again, {} contributions compared {}, {} wrong",
                  status_of(verdict) == 0 ? "ok" : "WRONG", name, made.steps, made.rounds.size(),
                  like ? "byte for byte" : "by distance", wrong.size()),
      2);
  if (!like) {
    double farthest = 0;
    for (const auto& round : made.rounds) farthest = std::max(farthest, round.distance);
    add(fmt::format(
            "  this machine computes other bits: {}; the largest relative distance is {:.2g}, and up to {} "
            "is allowed",
            differences(verdict.machine, made.machine), farthest, AuditVerdict::max_distance),
        4);
  }
  constexpr std::size_t max_listed = 10;
  for (std::size_t i = 0; i < std::min(wrong.size(), max_listed); ++i)
    add("  " + line_of(wrong[i], verdict.member), 4);
  if (wrong.size() > max_listed) add(fmt::format("  and {} more", wrong.size() - max_listed), 4);
  if (like && !made.sections.empty())
    add(fmt::format("  its checkpoint of step {} has other values than computed here in: {}", verdict.end,
                    fmt::join(made.sections, ", ")),
        4);
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
                      {"wrong", verdict.is_wrong(round)}});
  }
  return {{"member", verdict.member},
          {"begin", verdict.begin},
          {"end", verdict.end},
          {"status", status_of(verdict)},
          {"problem", verdict.problem ? verdict.problem->what() : ""},
          {"like_machine", verdict.is_like_machine()},
          {"log", verdict.made.log.string()},
          {"steps", verdict.made.steps},
          {"rounds", rounds},
          {"sections", verdict.made.sections}};
}

}  // namespace isthmus::app
