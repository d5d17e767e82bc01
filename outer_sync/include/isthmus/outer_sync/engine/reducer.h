#pragma once
// The arithmetic of the member that owns a chunk: it decodes the contributions, takes their mean, encodes it.

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
#include "isthmus/quant/passes.h"

namespace isthmus::outer_sync {

/// Bytes of the largest chunk of a run.
[[nodiscard]] std::size_t largest_encoded_chunk(const FragmentLayout& layout,
                                                const protocol::CodecPlan& codecs);

/// Where stochastic rounding of a chunk takes its random numbers from.
[[nodiscard]] quant::Noise noise_of(const FragmentLayout& layout, ChunkId chunk, std::uint64_t seed,
                                    protocol::Round round);

/// A contribution that makes a result impossible. `contribution` is its index among those of the chunk.
class BadContribution : public Error {
 public:
  BadContribution(const std::string& message, std::size_t index)
      : Error(ErrorKind::divergence, message), contribution(index) {}
  std::size_t contribution;
};

/// The result of a chunk's contributions.
struct Reduction {
  protocol::SharedBytes bytes;  ///< of the result
  protocol::Measured measured;
};

/// Reduces the chunks that this member owns: decodes contributions in member order, adds, divides, encodes.
/// Several threads may call reduce(), each for other chunks; the rounds of one chunk come in order.
class Reducer {
 public:
  /// With error feedback the owner adds what encoding lost to the next round of the same chunk. What warm-up
  /// rounds lost is dropped when they end, since gradients and outer gradients are different quantities.
  Reducer(const FragmentLayout& layout, protocol::CodecPlan codecs);

  /// The encoded weighted mean sum w_i x_i / sum w_i, with w_i = weight_i / the largest weight: equal weights
  /// become 1, so the result is the plain mean, bit for bit. `weights` has the tokens behind each
  /// contribution; all zero counts as equal. A contribution that `reject` excludes adds neither value nor
  /// weight. Throws BadContribution if bytes do not decode (it names the chunk) or the mean cannot be encoded
  /// (it names the contribution of the largest norm).
  [[nodiscard]] Reduction reduce(ChunkId chunk, protocol::Round round,
                                 std::span<const protocol::SharedBytes> contributions,
                                 std::span<const std::uint64_t> weights,
                                 const protocol::RejectRule& reject = {});
  /// The sum of squares of the decoded values, in fp64: element i goes into sum i mod 16, and the sixteen
  /// sums are added in order. Infinity if the bytes do not decode.
  [[nodiscard]] double squares(ChunkId chunk, protocol::Round round, const Bytes& bytes) const;

  /// Drops a chunk's residual: its result was dropped, or another member owns the chunk now.
  void forget(ChunkId chunk) { residuals_.at(chunk) = {}; }

  /// Residuals by chunk, for checkpoints. Not to be called while reduce() runs.
  using Residuals = std::vector<AlignedVector<float>>;
  [[nodiscard]] const Residuals& residuals() const { return residuals_; }
  /// Throws Error(data) unless the shape is this layout's.
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
