#include "run/audit/receipt_groups.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "isthmus/outer_sync/engine/sketch.h"

namespace isthmus::app {

namespace {

using outer_sync::protocol::Receipt;
using outer_sync::protocol::Received;

/// Limits of a line: the coordinator gathers no lines of more than 16 KiB. A chunk takes up to 26 characters
/// and 16 for each member; a member with its sketch up to 420.
constexpr std::size_t max_members = 24;
std::size_t max_chunks(std::size_t members) { return (12'288 - 420 * members) / (26 + 16 * members); }

using Lines = ReceiptGroups::Lines;

/// The contributions of the next members, of a line of their own.
std::span<const Received> next_members(std::span<const Received> all, std::size_t line) {
  const auto rest = all.subspan(std::min(line * max_members, all.size()));
  return rest.first(std::min(max_members, rest.size()));
}

bool have_members(const Lines& lines, std::span<const Received> contributions) {
  if (lines.size() != (contributions.size() + max_members - 1) / max_members) return false;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto same = [](const auto& a, const auto& b) {
      return a.member == b.member && a.weight == b.weight && a.kept == b.kept;
    };
    if (!std::ranges::equal(lines[i].contributions, next_members(contributions, i), same)) return false;
  }
  return true;
}

Lines& lines_for(std::vector<Lines>& groups, const Receipt& receipt) {
  const std::span<const Received> contributions = receipt.contributions;
  const auto limit = max_chunks(std::min(contributions.size(), max_members));
  const auto found = std::ranges::find_if(groups, [&](const Lines& lines) {
    const auto& chunks = lines.front().chunks;
    return chunks.size() < limit && have_members(lines, contributions) &&
           std::ranges::find(chunks, receipt.chunk) == chunks.end();  // if the round was repeated
  });
  if (found != groups.end()) return *found;
  auto& lines = groups.emplace_back();
  for (std::size_t begin = 0; begin < contributions.size(); begin += max_members) {
    auto& line = lines.emplace_back(AuditReceipts{.fragment = receipt.fragment, .round = receipt.round});
    for (const auto& received : next_members(contributions, begin / max_members))
      line.contributions.push_back(
          {.member = received.member, .weight = received.weight, .kept = received.kept});
  }
  return lines;
}

void add_chunk(AuditReceipts& line, const Receipt& receipt, std::span<const Received> contributions) {
  line.chunks.push_back(receipt.chunk);
  line.results.push_back(short_digest(receipt.result));
  for (std::size_t m = 0; m < contributions.size(); ++m) {
    auto& received = line.contributions[m];
    received.bytes.push_back(short_digest(contributions[m].bytes));
    outer_sync::add_sketch(received.sketch, contributions[m].sketch);
  }
}

void move_into(std::vector<AuditReceipts>& out, std::vector<Lines>& groups) {
  for (auto& lines : groups) std::ranges::move(lines, std::back_inserter(out));
}

}  // namespace

std::vector<AuditReceipts> ReceiptGroups::add(const Receipt& receipt) {
  std::vector<AuditReceipts> complete;
  auto& open = open_[receipt.fragment];
  if (open.round != receipt.round) {
    move_into(complete, open.groups);
    open = {.round = receipt.round};
  }
  if (!receipt.contributions.empty()) {
    auto& lines = lines_for(open.groups, receipt);
    for (std::size_t i = 0; i < lines.size(); ++i)
      add_chunk(lines[i], receipt, next_members(receipt.contributions, i));
  }
  if (++open.chunks < receipt.of) return complete;
  move_into(complete, open.groups);
  open = {.round = receipt.round};
  return complete;
}

std::vector<AuditReceipts> ReceiptGroups::rest() {
  std::vector<AuditReceipts> out;
  for (auto& [fragment, open] : open_) move_into(out, open.groups);
  open_.clear();
  return out;
}

}  // namespace isthmus::app
