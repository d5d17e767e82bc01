#pragma once
// The arithmetic of a chunk owner: it decodes the contributions, computes their mean and encodes it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/aligned.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/buffer_pool.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/receipts.h"
#include "isthmus/quant/passes.h"

namespace isthmus::outer_sync {

/// Bytes of a run's largest encoded chunk.
[[nodiscard]] std::size_t largest_encoded_chunk(const FragmentLayout& layout,
                                                const protocol::CodecPlan& codecs);

/// Source of the random numbers for stochastic rounding of a chunk.
[[nodiscard]] quant::Noise noise_of(const FragmentLayout& layout, ChunkId chunk, std::uint64_t seed,
                                    protocol::Round round);

/// A contribution that makes a result impossible. `contribution` is its index in the chunk's contributions.
class BadContribution : public Error {
 public:
  BadContribution(const std::string& message, std::size_t index)
      : Error(ErrorKind::divergence, message), contribution(index) {}
  std::size_t contribution;
};

/// The result of reducing one chunk.
struct Reduction {
  protocol::SharedBytes bytes;  ///< the encoded mean
  protocol::Measured measured;
};

/// Reduces the chunks that this member owns: decodes contributions in member order, adds, divides, encodes.
/// Several threads may call reduce() for different chunks; the rounds of one chunk must come in order.
class Reducer {
 public:
  /// With error feedback the owner adds what encoding lost to the next round of the same chunk. Losses of
  /// warm-up rounds are dropped at the warm-up's end, because gradients and outer gradients are different
  /// quantities.
  Reducer(const FragmentLayout& layout, protocol::CodecPlan codecs);

  /// Returns the encoded weighted mean sum w_i x_i / sum w_i, with w_i = weight_i / the largest weight: equal
  /// weights become 1, so the result is the plain mean, bit for bit. `weights`: tokens behind each
  /// contribution; all zero counts as equal. Contributions that `reject` excludes add neither value nor
  /// weight. Throws BadContribution if bytes do not decode (naming the chunk) or the mean cannot be encoded
  /// (naming the contribution with the largest norm).
  [[nodiscard]] Reduction reduce(ChunkId chunk, protocol::Round round,
                                 std::span<const protocol::SharedBytes> contributions,
                                 std::span<const std::uint64_t> weights,
                                 const protocol::RejectRule& reject = {});
  /// Sum of squares of the decoded values, in fp64: element i is added to sum i mod 16, then the sixteen sums
  /// are added in order. Infinity if the bytes do not decode.
  [[nodiscard]] double squares(ChunkId chunk, protocol::Round round, const Bytes& bytes) const;

  /// The receipt for one contribution, without its member. Its sketch is of zeros if the bytes do not decode.
  [[nodiscard]] protocol::Received received(ChunkId chunk, protocol::Round round, const Bytes& bytes) const;

  /// Drops a chunk's residual, because its result was dropped or another member owns the chunk now.
  void forget(ChunkId chunk) { residuals_.at(chunk) = {}; }

  /// Residuals by chunk, for checkpoints. Do not call while reduce() runs.
  using Residuals = std::vector<AlignedVector<float>>;
  [[nodiscard]] const Residuals& residuals() const { return residuals_; }
  /// Throws Error(data) if the shape does not fit this layout.
  void restore(Residuals residuals);

  /// Memory for the encoded chunks of this run.
  [[nodiscard]] const BufferPool& buffers() const { return buffers_; }

 private:
  quant::Feedback feedback(ChunkId chunk, protocol::Round round);
  [[nodiscard]] protocol::SharedBytes encode_mean(ChunkId chunk, protocol::Round round,
                                                  std::span<const float> sum, float divisor,
                                                  std::size_t biggest);
  [[nodiscard]] std::vector<double> dots(protocol::Round round,
                                         std::span<const protocol::SharedBytes> contributions,
                                         std::span<const float> sum, float divisor) const;

  const FragmentLayout& layout_;
  protocol::CodecPlan codecs_;
  Residuals residuals_;  ///< by chunk; empty without error feedback
  BufferPool buffers_;
  Pool<float> sums_;
};

}  // namespace isthmus::outer_sync
