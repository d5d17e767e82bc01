#pragma once
// What the outer loop needs of the world: hand in encoded chunks, get back the round's result bytes.

#include <map>
#include <span>
#include <vector>

#include "isthmus/outer_sync/buffer_pool.h"
#include "isthmus/outer_sync/layout.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/quant/passes.h"

namespace isthmus::outer_sync {

/// Bytes of the largest chunk of a run.
[[nodiscard]] std::size_t largest_encoded_chunk(const FragmentLayout& layout,
                                                const protocol::CodecPlan& codecs);

/// An owner's arithmetic: decode contributions in member order, add, divide, encode. Different chunks may be
/// reduced from different threads; rounds of one chunk come in order.
class Reducer {
 public:
  /// With error feedback the owner carries what encoding lost from round to round, by chunk. What warm-up
  /// rounds carry ends with them, since gradients and outer gradients are different quantities.
  Reducer(const FragmentLayout& layout, protocol::CodecPlan codecs);

  /// The encoded mean. Throws Error(divergence) naming the chunk and, by index, the member whose bytes do not
  /// decode.
  [[nodiscard]] protocol::SharedBytes reduce(ChunkId chunk, protocol::Round round,
                                             std::span<const protocol::SharedBytes> contributions);

  /// Residuals by chunk, for checkpoints. Nothing may be reduced meanwhile.
  using Residuals = std::vector<AlignedVector<float>>;
  [[nodiscard]] const Residuals& residuals() const { return residuals_; }
  /// Throws Error(data) unless the shape is this layout's.
  void restore(Residuals residuals);

  /// Memory for the encoded chunks of this run.
  [[nodiscard]] const BufferPool& buffers() const { return buffers_; }

 private:
  quant::Feedback feedback(ChunkId chunk, protocol::Round round);

  const FragmentLayout& layout_;
  protocol::CodecPlan codecs_;
  Residuals residuals_;  ///< by chunk; empty where none is carried
  BufferPool buffers_;
  Pool<float> sums_;
};

/// Where stochastic rounding of a chunk takes its random numbers from.
[[nodiscard]] quant::Noise noise_of(const FragmentLayout& layout, ChunkId chunk, std::uint64_t seed,
                                    protocol::Round round);

class RoundExchange {
 public:
  virtual ~RoundExchange() = default;
  /// Hands in one encoded chunk; returns at once.
  virtual void contribute(ChunkId chunk, protocol::Round round, protocol::SharedBytes bytes) = 0;
  /// Blocks until the round's results are here; in chunk order. Throws Error(network) when they cannot come
  /// any more.
  [[nodiscard]] virtual std::vector<protocol::SharedBytes> wait(FragmentId fragment,
                                                                protocol::Round round) = 0;
  /// The round is in the global parameters here.
  virtual void applied(FragmentId fragment, protocol::Round round, const Digest& chain) = 0;
  [[nodiscard]] virtual Reducer& reducer() = 0;
  /// Where the memory of what is handed in comes from.
  [[nodiscard]] const BufferPool& buffers() { return reducer().buffers(); }
};

}  // namespace isthmus::outer_sync
