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

bool same_members(const AuditReceipts& line, std::span<const Received> contributions) {
  return std::ranges::equal(line.contributions, contributions, [](const auto& a, const auto& b) {
    return a.member == b.member && a.weight == b.weight && a.kept == b.kept;
  });
}

AuditReceipts& line_for(std::vector<AuditReceipts>& lines, const Receipt& receipt,
                        std::span<const Received> contributions) {
  const auto found = std::ranges::find_if(lines, [&](const AuditReceipts& line) {
    return line.chunks.size() < max_chunks(contributions.size()) && same_members(line, contributions) &&
           std::ranges::find(line.chunks, receipt.chunk) == line.chunks.end();  // if the round was repeated
  });
  if (found != lines.end()) return *found;
  auto& line = lines.emplace_back(AuditReceipts{.fragment = receipt.fragment, .round = receipt.round});
  for (const auto& received : contributions)
    line.contributions.push_back(
        {.member = received.member, .weight = received.weight, .kept = received.kept});
  return line;
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

}  // namespace

std::vector<AuditReceipts> ReceiptGroups::add(const Receipt& receipt) {
  std::vector<AuditReceipts> complete;
  auto& open = open_[receipt.fragment];
  if (open.round != receipt.round) {
    complete = std::move(open.lines);
    open = {.round = receipt.round};
  }
  for (std::size_t begin = 0; begin < receipt.contributions.size(); begin += max_members) {
    const auto rest = std::span(receipt.contributions).subspan(begin);
    const auto some = rest.first(std::min(max_members, rest.size()));
    add_chunk(line_for(open.lines, receipt, some), receipt, some);
  }
  if (++open.chunks < receipt.of) return complete;
  std::ranges::move(open.lines, std::back_inserter(complete));
  open = {.round = receipt.round};
  return complete;
}

std::vector<AuditReceipts> ReceiptGroups::rest() {
  std::vector<AuditReceipts> out;
  for (auto& [fragment, open] : open_) std::ranges::move(open.lines, std::back_inserter(out));
  open_.clear();
  return out;
}

}  // namespace isthmus::app
