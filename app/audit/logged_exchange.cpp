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

namespace {
/// Relative distance between sketches of the same bytes, which differ in the order of a sum.
constexpr double same_sketch = 1e-3;
}  // namespace

LoggedExchange::LoggedExchange(Parts parts)
    : parts_(std::move(parts)),
      reducer_(parts_.layout, parts_.codecs),
      settings_(std::make_shared<const outer_sync::protocol::Settings>(parts_.settings)),
      owners_(parts_.codecs) {}

void LoggedExchange::at_step(std::uint64_t step, std::uint64_t others) {
  const std::lock_guard lock(mutex_);
  step_ = step, others_ = others;
}

void LoggedExchange::contribute(ChunkId chunk, std::uint64_t round, SharedBytes bytes, std::uint64_t weight,
                                const SampleSet& samples) {
  auto made = reducer_.received(chunk, round, *bytes);
  made.weight = weight;
  const std::lock_guard lock(mutex_);
  made_[{round, chunk}] = {std::move(made), step_, samples};
}

bool LoggedExchange::read_to(FragmentId fragment, std::uint64_t round) {
  auto& log = parts_.log.at(fragment);
  while (log.state().round < round) {
    if (!log.next()) return false;
  }
  return true;
}

std::vector<LoggedExchange::Own> LoggedExchange::receipts_of(FragmentId fragment, ChunkId chunk,
                                                             std::uint64_t round,
                                                             const SharedBytes& result) const {
  std::vector<Own> owners;
  for (const auto& found : parts_.receipts.find(fragment, chunk, round, hash_of(*result))) {
    auto known = std::ranges::find(owners, *found.owner, [](const Own& own) { return *own.in.owner; });
    if (known == owners.end()) known = owners.insert(owners.end(), Own{found, nullptr});
    const auto* received = found.from(parts_.member);
    if (known->received == nullptr && received != nullptr) *known = {found, received};
  }
  // If a result was made twice, one owner may have had a contribution that did not count.
  std::stable_partition(owners.begin(), owners.end(), [](const Own& own) { return own.received != nullptr; });
  for (const auto& own : owners) {
    if (own.agrees_with(owners.front())) continue;
    data_error(
        fmt::format("{} and {} have different receipts for the contribution of {} to chunk {} of round {}: "
                    "one of them is false",
                    *owners.front().in.owner, *own.in.owner, parts_.member, chunk, round));
  }
  if (!owners.empty()) return owners;
  data_error(fmt::format(
      "no member has a receipt for chunk {} of round {}; expected the audit.jsonl of its owner in "
      "the run's folder: copy it there from the owner's machine",
      chunk, round));
}

bool LoggedExchange::Own::agrees_with(const Own& first) const {
  if (received == first.received) return true;
  if (received == nullptr) return !first.received->kept || first.received->weight == 0;
  return bytes() == first.bytes() && received->weight == first.received->weight &&
         received->kept == first.received->kept;
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
  return {.result = result_of(fragment, round)};
}

/// The log must be at this round.
outer_sync::RoundResult LoggedExchange::result_of(FragmentId fragment, std::uint64_t round) const {
  outer_sync::RoundResult result{.chunks = parts_.log[fragment].results(), .included = {}};
  const auto first = parts_.layout.chunks_of(fragment).first;
  for (std::size_t i = 0; i < result.chunks.size(); ++i) {
    const auto chunk = first + static_cast<ChunkId>(i);
    const auto* own = receipts_of(fragment, chunk, round, result.chunks[i]).front().received;
    result.included.push_back(own != nullptr && own->kept);
    result.rejected.push_back(own != nullptr && !own->kept);
  }
  return result;
}

std::optional<outer_sync::RoundResult> LoggedExchange::outcome(FragmentId fragment, std::uint64_t round) {
  if (parts_.log.at(fragment).state().round > round || !read_to(fragment, round) ||
      !has_receipts(fragment, round))
    return std::nullopt;
  return result_of(fragment, round);
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

/// Between what these lines say was received and what was made here.
double LoggedExchange::distance_of(std::span<const Own> lines, const Made& made) const {
  std::vector<Sketch> here, received;
  for (const auto& own : lines) {
    auto& sum = here.emplace_back();
    for (const auto chunk : own.in.line->chunks) {
      const auto place = made.find(chunk);
      if (place == made.end())
        data_error(
            fmt::format("a receipt of {} for round {} of fragment {} has chunk {} among its chunks, to which "
                        "{} contributed at another time: it is false",
                        *own.in.owner, own.in.line->round, own.in.line->fragment, chunk, parts_.member));
      outer_sync::add_sketch(sum, place->second.sketch);
    }
    received.push_back(own.received->sketch);
  }
  return outer_sync::relative_distance(received, here);
}

void LoggedExchange::take_results(FragmentId fragment, std::uint64_t round) {
  const auto results = parts_.log[fragment].results();
  const auto first = parts_.layout.chunks_of(fragment).first;
  std::vector<outer_sync::protocol::Received> made;
  for (std::size_t i = 0; i < results.size(); ++i)
    made.push_back(reducer_.received(first + static_cast<ChunkId>(i), round, *results[i]));
  for (const auto& [owner, line] : parts_.receipts.lines(fragment, round)) {
    std::map<ChunkId, Sketch> logged;
    for (std::size_t i = 0; i < line.chunks.size(); ++i) {
      const auto place = std::size_t{line.chunks[i]} - first;  // also too large if the chunk is before
      if (place < made.size() && line.results[i] == short_digest(made[place].bytes))
        logged[line.chunks[i]] = made[place].sketch;
    }
    if (!logged.empty()) owners_.add(owner, line, logged);  // otherwise its results did not count
  }
}

/// Whether all its contributions in the line are those made here.
bool LoggedExchange::has_bytes_of(const Own& own, const Made& made) {
  const auto& chunks = own.in.line->chunks;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const auto place = made.find(chunks[i]);
    if (place == made.end() || own.received->bytes.at(i) != short_digest(place->second.bytes)) return false;
  }
  return true;
}

void LoggedExchange::compare(FragmentId fragment, std::uint64_t round) {
  take_results(fragment, round);
  const auto results = parts_.log[fragment].results();
  const auto chunks = parts_.layout.chunks_of(fragment);
  AuditedRound out{.fragment = fragment, .round = round};
  Made made;
  // By owner, the first chunk of each line. Each owner has a distance of its own: the sketches of a false
  // receipt must not hide those of a true one.
  std::map<std::string, std::vector<Own>> lines;
  SampleSet samples;
  bool counts = true;  // in all chunks, so that the ledger has its samples
  const std::lock_guard lock(mutex_);
  for (auto k = chunks.first; k < chunks.last; ++k) {
    const auto place = made_.find({round, k});
    if (place == made_.end()) {  // sent before the checkpoint
      counts = false;
      continue;
    }
    const auto own_made = std::move(place->second);
    samples.add(own_made.samples);
    made_.erase(place);
    made[k] = own_made.made;
    const auto owners = receipts_of(fragment, k, round, results[k - chunks.first]);
    const auto& own = owners.front();
    counts = counts && own.received != nullptr && own.received->kept;
    if (own.received == nullptr) continue;  // late for this chunk
    ++out.chunks;
    out.sent_at = own_made.sent_at;
    const bool same_bytes = own.bytes() == short_digest(own_made.made.bytes);
    const bool same_weight = own.received->weight == own_made.made.weight;
    if (out.weight == out.weight_received) {  // keeps the first difference
      out.weight = own_made.made.weight;
      out.weight_received = own.received->weight;
    }
    out.equal += same_bytes ? 1 : 0;
    for (const auto& of_owner : owners) {
      const auto& name = *of_owner.in.owner;
      if (!(same_bytes && same_weight) && std::ranges::find(out.owners, name) == out.owners.end())
        out.owners.push_back(name);
      if (of_owner.received == nullptr) continue;
      auto& listed = lines[name];
      const auto is_same = [&](const Own& other) { return other.in.line == of_owner.in.line; };
      if (std::ranges::none_of(listed, is_same)) listed.push_back(of_owner);
    }
  }
  if (out.chunks == 0) return;
  if (counts)
    out.gap = parts_.receipts.gap_in_ledgers(parts_.member, fragment, round,
                                             parts_.log[fragment].state().chain, samples);
  for (const auto& [owner, own_lines] : lines) {
    out.distance = std::max(out.distance, distance_of(own_lines, made));
    const bool is_false = std::ranges::any_of(own_lines, [&](const Own& own) {
      return has_bytes_of(own, made) && distance_of({&own, 1}, made) > same_sketch;
    });
    if (is_false) owners_.add({owner, parts_.member, fragment, round});
  }
  owners_.add_audited(parts_.member, fragment, round);
  compared_.push_back(std::move(out));
}

/// The records may end with the interval.
bool LoggedExchange::has_receipts(FragmentId fragment, std::uint64_t round) const {
  const auto results = parts_.log[fragment].results();
  const auto first = parts_.layout.chunks_of(fragment).first;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (parts_.receipts.find(fragment, first + static_cast<ChunkId>(i), round, hash_of(*results[i])).empty())
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
