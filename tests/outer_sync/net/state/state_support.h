#pragma once
// The layout, codecs and ids of tests that stream a run's state.

#include <cstdint>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "net/state_transfer/state_frames.h"
#include "run_token.h"

namespace isthmus::outer_sync::transport {

inline constexpr protocol::ReplicaId fetcher_id = 22;
inline constexpr StateParts theta_only = set_of(StatePart::theta);
inline constexpr std::uint64_t fast_rate = 1'000'000'000;  ///< bytes per second

/// The second fragment needs several pieces, the last of them short.
inline FragmentLayout state_layout() { return FragmentLayout({{0, 1000}, {1008, 200'003}}, 4096); }

/// Rounds 1 and 2 are sent in fp32.
inline protocol::CodecPlan state_codecs() {
  return {.codec = quant::default_spec(quant::CodecKind::int8),
          .warmup_codec = quant::default_spec(quant::CodecKind::fp32),
          .warmup_rounds = 2};
}

}  // namespace isthmus::outer_sync::transport
