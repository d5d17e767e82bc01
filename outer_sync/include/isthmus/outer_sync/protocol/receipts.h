#pragma once
// Receipts: what the owner of a chunk received from each member in a round. An audit runs a member's steps
// again and compares its contributions with them (docs/how-to/audit.md).
// The codec thread of the owner makes them, in runs with run.audit.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/messages/members.h"

namespace isthmus::outer_sync::protocol {

/// Sums over a contribution's decoded values (engine/sketch.h).
inline constexpr std::size_t sketch_size = 32;
using Sketch = std::array<float, sketch_size>;

/// One member's contribution to one chunk.
struct Received {
  std::string member;
  std::uint64_t weight = 0;  ///< its tokens
  bool kept = true;          ///< false: rejected for its norm (outer.reject)
  Digest bytes = {};         ///< SHA-256 of the encoded chunk
  Sketch sketch{};
  friend bool operator==(const Received&, const Received&) = default;
};

struct Receipt {
  FragmentId fragment = 0;
  Round round = 0;
  ChunkId chunk = 0;
  std::uint32_t of = 1;                      ///< how many chunks of this fragment the owner reduces
  Digest result = {};                        ///< SHA-256 of the result that the owner made of them
  std::vector<Received> contributions = {};  ///< in member order
  friend bool operator==(const Receipt&, const Receipt&) = default;
};

/// Takes an owner's receipts, on its codec thread; must not throw.
class ReceiptSink {
 public:
  virtual ~ReceiptSink() = default;
  virtual void take(const Receipt& receipt) = 0;
  /// The view has ended: rounds that lack receipts get none, unless the next view repeats them.
  virtual void end_view() {}
};

}  // namespace isthmus::outer_sync::protocol
