#pragma once
// What the outer loop needs of the world: hand in encoded chunks, get back the round's result bytes.

#include <map>
#include <span>
#include <vector>

#include "isthmus/outer_sync/layout.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/quant/passes.h"

namespace isthmus::outer_sync {

/// An owner's arithmetic: decode contributions in member order, add, divide, encode. Different chunks may be
/// reduced from different threads; rounds of one chunk come in order.
class Reducer {
 public:
  /// With error feedback the owner carries what encoding lost from round to round, by chunk. What warm-up
  /// rounds carry ends with them, since gradients and outer gradients are different quantities.
  Reducer(const FragmentLayout& layout, protocol::CodecPlan codecs);

  /// The encoded mean. Throws Error(divergence) naming the chunk and, by index, the member whose bytes do not
  /// decode.
  [[nodiscard]] Bytes reduce(ChunkId chunk, protocol::Round round,
                             std::span<const protocol::SharedBytes> contributions);

  /// Residuals by chunk, for checkpoints. Nothing may be reduced meanwhile.
  [[nodiscard]] const std::vector<std::vector<float>>& residuals() const { return residuals_; }
  /// Throws Error(data) unless the shape is this layout's.
  void restore(std::vector<std::vector<float>> residuals);

 private:
  quant::Feedback feedback(ChunkId chunk, protocol::Round round);

  const FragmentLayout& layout_;
  protocol::CodecPlan codecs_;
  std::vector<std::vector<float>> residuals_;  ///< by chunk; empty where none is carried
};

/// Where stochastic rounding of a chunk takes its random numbers from.
[[nodiscard]] quant::Noise noise_of(const FragmentLayout& layout, ChunkId chunk, std::uint64_t seed,
                                    protocol::Round round);

class RoundExchange {
 public:
  virtual ~RoundExchange() = default;
  /// Hands in one encoded chunk; returns at once.
  virtual void contribute(ChunkId chunk, protocol::Round round, Bytes bytes) = 0;
  /// Blocks until the round's results are here; in chunk order. Throws Error(network) when they cannot come
  /// any more.
  [[nodiscard]] virtual std::vector<protocol::SharedBytes> wait(FragmentId fragment,
                                                                protocol::Round round) = 0;
  /// The round is in the global parameters here.
  virtual void applied(FragmentId fragment, protocol::Round round, const Digest& chain) = 0;
  [[nodiscard]] virtual Reducer& reducer() = 0;
};

}  // namespace isthmus::outer_sync
