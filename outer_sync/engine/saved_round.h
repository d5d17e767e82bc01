#pragma once
// A round in flight in a checkpoint: it is saved with its result, and applied after the restart.

#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/outer_sync/engine/rounds_in_flight.h"

namespace isthmus::outer_sync {

struct SavedRound {
  FragmentId fragment = 0;
  protocol::Round round = 0;
  std::uint64_t sent_step = 0;
  std::string codec;  ///< the settings that determine how its bytes are decoded
  std::vector<Bytes> results;
  std::vector<Bytes> own;              ///< in chunk order; empty if no longer needed
  std::vector<std::uint8_t> included;  ///< outcome of each of this replica's chunks
  std::uint64_t weight = 0;
  SampleSet samples;                  ///< behind the contribution
  std::vector<SampleRange> together;  ///< samples behind all contributions in its result
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, round, sent_step, codec, results, own, included, weight, samples, together);
  }
};

/// The outcome of this replica's contribution to each chunk, as it is saved.
[[nodiscard]] std::vector<std::uint8_t> fates_of(const RoundResult& result);

/// `flight` must have its result.
[[nodiscard]] SavedRound saved_round(const InFlight& flight, std::uint64_t sent_step,
                                     const quant::CodecSpec& codec);
/// `saved` must have no problem.
[[nodiscard]] InFlight in_flight(SavedRound saved);

/// The run that a checkpoint is restored into.
struct RestoredRun {
  const FragmentLayout& layout;
  const Schedule& schedule;
  const protocol::CodecPlan& codecs;
  const std::vector<protocol::FragmentState>& fragments;  ///< as saved
  std::uint64_t step;                                     ///< as saved
  bool carries;                                           ///< outer.merge is carry
};
/// Why a saved round cannot be in flight in this run; null if it can. `earlier`: number of older rounds of
/// its fragment in flight.
[[nodiscard]] const char* problem_of(const SavedRound& saved, std::uint64_t earlier, const RestoredRun& run);

}  // namespace isthmus::outer_sync
