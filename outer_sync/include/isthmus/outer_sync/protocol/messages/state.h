#pragma once
// The state that members report and compare: rounds applied, checkpoints and requests for them, digests.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/messages/members.h"

namespace isthmus::outer_sync::protocol {

struct FragmentState {
  Round round = 0;  ///< last applied
  Digest chain;     ///< chain hash after that round
  friend bool operator==(const FragmentState&, const FragmentState&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(round, chain);
  }
};

/// Checkpoints that a member lists in one message: the newest.
inline constexpr std::size_t max_checkpoints = 1024;

/// A complete checkpoint. Two checkpoints of one step are equal only if they hold the same agreed state: a
/// replica may have written one on rounds that were later repeated.
struct CheckpointId {
  std::uint64_t step = 0;
  std::uint64_t content = 0;  ///< first 8 bytes of the digest of its agreed state
  friend auto operator<=>(const CheckpointId&, const CheckpointId&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step, content);
  }
};

/// member -> coordinator: order a checkpoint of all trainers, because I have to leave or was past the step of
/// the last one. Ignored while one is pending.
struct CheckpointRequest {
  std::string reason;  ///< human-readable
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

/// coordinator -> trainer: write a checkpoint after this agreed step. A trainer past it writes none. Changes
/// no agreed state.
struct CheckpointAt {
  std::uint64_t step = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step);
  }
};

/// Digest of a fragment's global parameters and momentum after a checked round (protocol/state_digests.h).
struct StateDigest {
  FragmentId fragment = 0;
  Round round = 0;
  std::uint64_t digest = 0;
  friend bool operator==(const StateDigest&, const StateDigest&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, round, digest);
  }
};

/// Maximum number of digests in a heartbeat.
inline constexpr std::size_t max_state_digests = 1024;

}  // namespace isthmus::outer_sync::protocol
