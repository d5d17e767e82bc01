#include "audit/logged_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/engine/sketch.h"

namespace isthmus::app {

using outer_sync::ChunkId;
using outer_sync::FragmentId;
using outer_sync::protocol::SharedBytes;
using outer_sync::protocol::Sketch;

LoggedExchange::LoggedExchange(Parts parts)
    : parts_(std::move(parts)),
      reducer_(parts_.layout, parts_.codecs),
      settings_(std::make_shared<const outer_sync::protocol::Settings>(parts_.settings)) {}

void LoggedExchange::contribute(ChunkId chunk, std::uint64_t round, SharedBytes bytes, std::uint64_t weight,
                                const SampleSet&) {
  auto made = reducer_.received(chunk, round, *bytes);
  made.weight = weight;
  const std::lock_guard lock(mutex_);
  made_[{round, chunk}] = {std::move(made), step_};
}

bool LoggedExchange::read_to(FragmentId fragment, std::uint64_t round) {
  auto& log = parts_.log.at(fragment);
  while (log.state().round < round) {
    if (!log.next()) return false;
  }
  return true;
}

const Receipts::Found& LoggedExchange::receipt_of(ChunkId chunk, std::uint64_t round,
                                                  const SharedBytes& result) const {
  const auto all = parts_.receipts.find(chunk, round, hash_of(*result));
  for (const auto* found : all) {
    const auto first = all.front()->from(parts_.member), own = found->from(parts_.member);
    const bool agree = first && own ? own->says_the_same_as(*first) : first.has_value() == own.has_value();
    if (agree) continue;
    data_error(
        fmt::format("{} and {} have different receipts for the contribution of {} to chunk {} of round {}: "
                    "one of them is false",
                    all.front()->owner, found->owner, parts_.member, chunk, round));
  }
  if (!all.empty()) return *all.front();
  data_error(fmt::format(
      "no member has a receipt for chunk {} of round {}; expected the audit.jsonl of its owner in "
      "the run's folder: copy it there from the owner's machine",
      chunk, round));
}

/// Without the result while the member did not have it either.
outer_sync::Awaited LoggedExchange::wait(FragmentId fragment, std::uint64_t round, bool) {
  if (!is_next(fragment, round)) {
    if (must_have_all_) refuse_round(fragment, round);
    return {};
  }
  if (!read_to(fragment, round))
    data_error(
        fmt::format("the round log ends before round {} of fragment {}; expected all rounds up to the "
                    "checkpoint: give a longer log with --log",
                    round, fragment));
  outer_sync::RoundResult result{.chunks = parts_.log[fragment].results(), .included = {}};
  const auto first = parts_.layout.chunks_of(fragment).first;
  for (std::size_t i = 0; i < result.chunks.size(); ++i) {
    const auto own = receipt_of(first + static_cast<ChunkId>(i), round, result.chunks[i]).from(parts_.member);
    result.included.push_back(own && own->kept);
    result.rejected.push_back(own && !own->kept);
  }
  return {.result = std::move(result)};
}

void LoggedExchange::applied(FragmentId fragment, std::uint64_t round, const Digest& chain,
                             std::vector<SampleRange>) {
  if (!is_next(fragment, round)) refuse_round(fragment, round);
  expected_.pop_front();
  if (!read_to(fragment, round) || parts_.log[fragment].state().chain != chain)
    data_error(
        fmt::format("round {} of fragment {} at {} is not that of the round log: its history is another one",
                    round, fragment, parts_.member));
  compare(fragment, round);
}

/// Between what the owners received and what was made here.
double LoggedExchange::distance_of(std::span<const ReceivedChunk> lines,
                                   const std::map<ChunkId, Sketch>& made) const {
  std::vector<Sketch> here, received;
  for (const auto& own : lines) {
    auto& sum = here.emplace_back();
    for (const auto chunk : own.line->chunks) {
      const auto place = made.find(chunk);
      if (place == made.end())
        data_error(
            fmt::format("a receipt for round {} of fragment {} has chunk {} among its chunks, to which {} "
                        "contributed at another time: it is false",
                        own.line->round, own.line->fragment, chunk, parts_.member));
      outer_sync::add_sketch(sum, place->second);
    }
    received.push_back(own.line->contributions[own.of_member].sketch);
  }
  return outer_sync::relative_distance(received, here);
}

void LoggedExchange::compare(FragmentId fragment, std::uint64_t round) {
  const auto results = parts_.log[fragment].results();
  const auto chunks = parts_.layout.chunks_of(fragment);
  AuditedRound out{.fragment = fragment, .round = round};
  std::map<ChunkId, Sketch> made;
  std::vector<ReceivedChunk> lines;  // the first chunk of each line of receipts
  const std::lock_guard lock(mutex_);
  for (auto k = chunks.first; k < chunks.last; ++k) {
    const auto place = made_.find({round, k});
    if (place == made_.end()) continue;  // sent before the checkpoint
    const auto own_made = std::move(place->second);
    made_.erase(place);
    const auto& found = receipt_of(k, round, results[k - chunks.first]);
    auto own = found.from(parts_.member);
    if (!own) continue;  // late for this chunk
    ++out.chunks;
    out.sent_at = own_made.sent_at;
    out.weight = own_made.made.weight;
    if (own->bytes == short_digest(own_made.made.bytes)) {
      ++out.equal;
    } else if (std::ranges::find(out.owners, found.owner) == out.owners.end()) {
      out.owners.push_back(found.owner);
    }
    out.weight_received = own->weight;
    made[k] = own_made.made.sketch;
    if (std::ranges::find(lines, own->line, &ReceivedChunk::line) == lines.end())
      lines.push_back(std::move(*own));
  }
  if (out.chunks == 0) return;
  out.distance = distance_of(lines, made);
  compared_.push_back(std::move(out));
}

/// The records may end with the interval.
bool LoggedExchange::has_receipts(FragmentId fragment, std::uint64_t round) const {
  const auto results = parts_.log[fragment].results();
  const auto first = parts_.layout.chunks_of(fragment).first;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (parts_.receipts.find(first + static_cast<ChunkId>(i), round, hash_of(*results[i])).empty())
      return false;
  }
  return true;
}

void LoggedExchange::compare_the_rest() {
  std::map<FragmentId, std::uint64_t> rounds;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [place, made] : made_) rounds[parts_.layout.fragment_of(place.second)] = place.first;
  }
  for (const auto& [fragment, round] : rounds) {
    if (read_to(fragment, round) && has_receipts(fragment, round)) compare(fragment, round);
  }
}

bool LoggedExchange::is_next(FragmentId fragment, std::uint64_t round) const {
  return !expected_.empty() && expected_.front().fragment == fragment && expected_.front().round == round;
}

void LoggedExchange::refuse_round(FragmentId fragment, std::uint64_t round) const {
  data_error(
      fmt::format("the journal of {} does not fit: its steps lead to round {} of fragment {}, which it "
                  "did not apply at that time",
                  parts_.member, round, fragment));
}

void LoggedExchange::give_up(const std::string& reason) {
  data_error(parts_.member + "'s interval cannot be audited: " + reason);
}

}  // namespace isthmus::app
