#include "engine/saved_round.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>

#include "isthmus/outer_sync/protocol/messages/versions.h"

namespace isthmus::outer_sync {
namespace {

/// All settings that determine how encoded bytes are decoded.
std::string description_of(const quant::CodecSpec& spec) {
  return std::string(quant::codec_of(spec.kind).stored_name) + " block " + std::to_string(spec.block) +
         " scale " + std::string(to_string(spec.scale)) + " top_k " + std::to_string(spec.top_k) +
         " numerics " + std::to_string(protocol::numerics_version);
}

/// The outcome of this replica's contribution to a chunk.
enum class Fate : std::uint8_t { left_out, included, rejected };

/// Whether these are a fragment's chunks in this codec, judged by their lengths. With `may_lack`, chunks may
/// be missing.
bool are_chunks(const std::vector<Bytes>& chunks, FragmentId p, const FragmentLayout& layout,
                const quant::CodecSpec& codec, bool may_lack) {
  const auto span = layout.chunks_of(p);
  if (chunks.size() != span.size()) return may_lack && chunks.empty();
  for (ChunkId i = 0; i < span.size(); ++i) {
    if (may_lack && chunks[i].empty()) continue;
    if (chunks[i].size() != quant::encoded_size(codec, layout.chunk(span.first + i).size)) return false;
  }
  return true;
}

std::vector<Bytes> copies(std::span<const protocol::SharedBytes> chunks) {
  std::vector<Bytes> out;
  for (const auto& bytes : chunks) out.push_back(bytes ? *bytes : Bytes());
  return out;
}

std::vector<protocol::SharedBytes> shared(std::vector<Bytes> chunks) {
  std::vector<protocol::SharedBytes> out;
  out.reserve(chunks.size());
  for (auto& bytes : chunks)
    out.push_back(bytes.empty() ? nullptr : std::make_shared<const Bytes>(std::move(bytes)));
  return out;
}

}  // namespace

std::vector<std::uint8_t> fates_of(const RoundResult& result) {
  std::vector<std::uint8_t> out;
  for (std::size_t i = 0; i < result.included.size(); ++i) {
    const bool rejected = !result.rejected.empty() && result.rejected[i];
    const auto fate = rejected ? Fate::rejected : result.included[i] ? Fate::included : Fate::left_out;
    out.push_back(static_cast<std::uint8_t>(fate));
  }
  return out;
}

SavedRound saved_round(const InFlight& flight, std::uint64_t sent_step, const quant::CodecSpec& codec) {
  return {flight.fragment,
          flight.round,
          sent_step,
          description_of(codec),
          copies(flight.result->chunks),
          copies(flight.own),
          fates_of(*flight.result),
          flight.weight,
          flight.samples,
          flight.result->samples};
}

InFlight in_flight(SavedRound saved) {
  RoundResult result{.chunks = shared(std::move(saved.results)), .included = {}};
  for (const auto fate : saved.included) {
    result.included.push_back(fate == static_cast<std::uint8_t>(Fate::included));
    result.rejected.push_back(fate == static_cast<std::uint8_t>(Fate::rejected));
  }
  result.samples = std::move(saved.together);
  InFlight flight{.fragment = saved.fragment, .round = saved.round};
  flight.own = shared(std::move(saved.own));
  flight.result = std::move(result);
  flight.weight = saved.weight;
  flight.samples = std::move(saved.samples);
  return flight;
}

const char* problem_of(const SavedRound& saved, std::uint64_t earlier, const RestoredRun& run) {
  const auto p = saved.fragment;
  if (p >= run.layout.fragment_count()) return "of another layout";
  if (saved.round != run.fragments[p].round + 1 + earlier) return "that does not follow the last one applied";
  const bool ever_applied = saved.sent_step <= run.step && run.schedule.sends(p, saved.sent_step) &&
                            run.schedule.rounds_sent(p, saved.sent_step) == saved.round;
  if (!ever_applied) {
    return "that these settings never apply; outer.sync_every, sync_delay, num_fragments and warmup_steps "
           "must be unchanged";
  }
  const auto& codec = run.codecs.of(saved.round);
  if (saved.codec != description_of(codec))
    return "of another codec; outer.codec and its settings must be unchanged";
  if (!are_chunks(saved.results, p, run.layout, codec, false)) return "cut short";
  if (!are_chunks(saved.own, p, run.layout, codec, true)) return "cut short";
  if (saved.included.size() != saved.results.size()) return "cut short";
  if (std::ranges::any_of(saved.included,
                          [](auto fate) { return fate > static_cast<std::uint8_t>(Fate::rejected); }))
    return "with an unknown outcome";
  constexpr auto* lacks_own = "without this replica's contribution; outer.merge must be unchanged";
  if (run.carries && saved.own.empty()) return lacks_own;
  for (std::size_t i = 0; i < saved.own.size(); ++i) {
    const auto& own = saved.own[i];
    const auto chunk = run.layout.chunks_of(p).first + static_cast<ChunkId>(i);
    if (own.empty() && (run.carries || saved.included[i] == 0)) return lacks_own;
    if (!own.empty() && !quant::valid(codec, own, run.layout.chunk(chunk).size))
      return "that does not decode";
  }
  return nullptr;
}

bool RoundsInFlight::fit(const std::vector<protocol::FragmentState>& fragments, const Schedule& schedule,
                         std::uint64_t step) const {
  for (FragmentId p = 0; p < fragments.size(); ++p) {
    const auto sent = schedule.rounds_sent(p, step);
    const auto applied = fragments[p].round;
    if (applied == sent + 1 ? count(p) != 0 : applied + count(p) != sent) return false;
  }
  return true;
}

}  // namespace isthmus::outer_sync
