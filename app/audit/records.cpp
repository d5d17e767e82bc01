#include "audit/records.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <utility>

#include "isthmus/base/error.h"

namespace isthmus::app {

void Journal::take(const AuditStart& line) {
  started_ = true;
  member_ = line.member;
  machine_ = line.machine;
  speeds_.reset();
  // The run has gone back to this step, or its history was never the run's: later intervals are void.
  const bool is_new = line.state == AuditStart::State::initial;
  std::erase_if(intervals_, [&](const auto& interval) { return is_new || interval.end.step > line.step; });
  if (line.state == AuditStart::State::checkpoint) return go_back_to(line.step);
  parts_.clear();  // the steps before do not lead to this state
}

void Journal::take(const AuditSpeeds& line) {
  speeds_ = line;
  add_event(line);
}

void Journal::take(const AuditSnapshot& line) {
  if (!started_) return;  // the records begin in the middle, or with another version
  parts_.push_back({.step = line.step, .machine = machine_, .speeds = speeds_, .events = {}});
}

void Journal::take(const AuditCheckpoint& line) {
  const auto part = std::ranges::find(parts_, line.step, &Part::step);
  if (part == parts_.end()) return;
  std::erase_if(intervals_, [&](const auto& interval) { return interval.end.step >= line.step; });
  part->checkpoint = line;
  if (part != parts_.begin()) collect(part);
}

void Journal::add_event(AuditEvent event) {
  if (!parts_.empty()) parts_.back().events.push_back(std::move(event));
}

/// The process has begun again from this checkpoint: what was done after it is void. If it was killed before
/// it reported the checkpoint's digest, no interval may lead over it: another machine or config may have
/// continued.
void Journal::go_back_to(std::uint64_t step) {
  const auto part = std::ranges::find(parts_, step, &Part::step);
  if (part == parts_.end() || !part->checkpoint) return parts_.clear();
  parts_.erase(part + 1, parts_.end());
  part->events.clear();
  part->speeds.reset();
  part->machine = machine_;
}

/// The interval that ends here. Snapshots that came to no checkpoint lie between.
void Journal::collect(std::vector<Part>::iterator end) {
  auto begin = end;
  do {
    --begin;
  } while (!begin->checkpoint && begin != parts_.begin());
  if (!begin->checkpoint) return;
  AuditInterval interval{.member = member_,
                         .begin = *begin->checkpoint,
                         .end = *end->checkpoint,
                         .speeds = begin->speeds,
                         .machine = begin->machine};
  for (auto part = begin; part != end; ++part) {
    if (part != begin) interval.events.emplace_back(AuditSnapshot{part->step});
    std::ranges::copy(part->events, std::back_inserter(interval.events));
  }
  intervals_.push_back(std::move(interval));
}

std::uint64_t AuditInterval::rounds() const {
  return static_cast<std::uint64_t>(std::ranges::count_if(
      events, [](const auto& event) { return std::holds_alternative<AuditApplied>(event); }));
}

AuditInterval joined(std::span<const AuditInterval> intervals) {
  auto out = intervals.front();
  for (const auto& next : intervals.subspan(1)) {
    out.events.emplace_back(AuditSnapshot{next.begin.step});
    out.events.push_back(next.speeds.value_or(AuditSpeeds()));  // a process that began there knew none
    std::ranges::copy(next.events, std::back_inserter(out.events));
    out.end = next.end;
    if (next.machine != out.machine) out.machine.clear();
  }
  return out;
}

std::vector<std::size_t> draw_intervals(const std::vector<std::uint64_t>& rounds, double share,
                                        std::uint64_t seed) {
  std::vector<std::size_t> order(rounds.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937_64 random(seed);
  std::ranges::shuffle(order, random);
  const auto all = static_cast<double>(std::accumulate(rounds.begin(), rounds.end(), std::uint64_t{0}));
  std::uint64_t taken = 0;
  std::size_t count = 0;
  while (count < order.size() && (count == 0 || static_cast<double>(taken) < share * all))
    taken += rounds[order[count++]];
  order.resize(count);
  return order;
}

std::uint64_t read_audit_file(const std::filesystem::path& file, const std::function<void(AuditLine)>& take) {
  std::ifstream in(file);
  if (!in) data_error("cannot read " + file.string() + "; expected the audit records of a member");
  std::uint64_t skipped = 0;
  for (std::string text; std::getline(in, text);) {
    if (text.empty()) continue;
    if (auto line = audit_line(text)) {
      take(std::move(*line));
    } else {
      ++skipped;
    }
  }
  return skipped;
}

void Receipts::add(const std::string& owner, AuditReceipts line) {
  auto& lines = lines_[{line.round, line.fragment}];
  lines.push_back({owner, std::move(line)});
}

void Receipts::add(const std::string& member, const AuditApplied& line) {
  ledgers_[{line.round, line.fragment}].push_back({member, line.chain, SampleSet(line.samples)});
}

Receipts::LedgerGap Receipts::gap_in_ledgers(const std::string& member, outer_sync::FragmentId fragment,
                                             std::uint64_t round, const Digest& chain,
                                             const SampleSet& samples) const {
  const auto place = ledgers_.find({round, fragment});
  if (place == ledgers_.end()) return {};
  LedgerGap gap;
  for (const auto& ledger : place->second) {
    if (is_folder_of(member, ledger.member) || ledger.chain != short_digest(chain) || ledger.samples.empty())
      continue;
    const auto lacks = without(samples, ledger.samples).size();
    if (lacks == 0) {
      gap.complete = ledger.member;
      continue;
    }
    gap.missing = gap.members.empty() ? lacks : std::min(gap.missing, lacks);
    if (std::ranges::find(gap.members, ledger.member) == gap.members.end())
      gap.members.push_back(ledger.member);
  }
  return gap;
}

bool is_folder_of(const std::string& member, const std::string& folder) {
  if (folder == member) return true;
  if (!folder.starts_with(member + '.')) return false;
  return std::ranges::all_of(folder.substr(member.size() + 1), [](char c) { return c >= '0' && c <= '9'; });
}

const std::deque<Receipts::Line>& Receipts::lines(outer_sync::FragmentId fragment,
                                                  std::uint64_t round) const {
  static const std::deque<Line> none;
  const auto place = lines_.find({round, fragment});
  return place == lines_.end() ? none : place->second;
}

const AuditReceived* Receipts::Found::from(const std::string& member) const {
  const auto received = std::ranges::find(line->contributions, member, &AuditReceived::member);
  return received == line->contributions.end() ? nullptr : &*received;
}

std::vector<Receipts::Found> Receipts::find(outer_sync::FragmentId fragment, outer_sync::ChunkId chunk,
                                            std::uint64_t round, const Digest& result) const {
  std::vector<Found> out;
  for (const auto& [owner, line] : lines(fragment, round)) {
    for (std::size_t i = 0; i < line.chunks.size(); ++i) {
      if (line.chunks[i] == chunk && line.results[i] == short_digest(result))
        out.push_back({&owner, &line, i});
    }
  }
  return out;
}

}  // namespace isthmus::app
