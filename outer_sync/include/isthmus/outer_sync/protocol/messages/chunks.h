#pragma once
// Chunks between members: contributions to a round and its results, in codec bytes behind a fixed header
// (net/wire/frame.h).

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/base/samples.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/messages/members.h"

namespace isthmus::outer_sync::protocol {

using SharedBytes = std::shared_ptr<const Bytes>;

/// `exchange`: between two members of a pair (exchanges.h); its `ChunkKey::round` is an agreed step.
enum class ChunkKind : std::uint8_t { contribution = 1, result = 2, exchange = 3 };

struct ChunkKey {
  Round round = 0;
  ChunkId chunk = 0;
  MemberIndex sender = 0;
  ChunkKind kind = ChunkKind::contribution;
  friend auto operator<=>(const ChunkKey&, const ChunkKey&) = default;
};

/// One contribution to a chunk: the sum of squares of its decoded values, infinity if it does not decode.
struct SquaredNorm {
  ReplicaId replica = 0;
  double value = 0;
  friend bool operator==(const SquaredNorm&, const SquaredNorm&) = default;
};

/// Training sequences behind one replica's contribution.
struct TrainedOn {
  ReplicaId replica = 0;
  SampleRange samples;
  friend bool operator==(const TrainedOn&, const TrainedOn&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(replica, samples);
  }
};
/// Ranges of one replica in one contribution; further ranges are sent with the next one.
inline constexpr std::size_t max_trained_on = 16;
/// Whether rows received from the network are valid for at most `replicas` replicas.
[[nodiscard]] bool are_sound(std::span<const TrainedOn> rows, std::size_t replicas);
/// Removes from `in_all`, the contributors to all chunks so far, the replicas that did not contribute to one
/// more chunk. An empty optional becomes `contributors`.
void keep_common(std::optional<std::vector<ReplicaId>>& in_all, const std::vector<ReplicaId>& contributors);
/// The samples of the replicas that contributed to all chunks of a round: these count for the ledger.
[[nodiscard]] std::vector<SampleRange> samples_of(std::span<const TrainedOn> rows,
                                                  std::span<const ReplicaId> in_all_chunks);

struct ChunkMessage {
  ViewNumber view = 0;
  ChunkKey key;
  SharedBytes bytes;
  std::uint64_t weight = 0;               ///< of a contribution or an exchange: its tokens
  std::vector<ReplicaId> contributors{};  ///< of a result; empty: all trainers of the view
  /// Result, if outer.reject is on: norms of all contributions that its owner received, in member order.
  std::vector<SquaredNorm> norms{};
  /// With a fragment's first chunk. Contribution: samples since the fragment's last one. Result: samples of
  /// all contributions that its owner received, in member order.
  std::vector<TrainedOn> trained_on{};
};

}  // namespace isthmus::outer_sync::protocol
