#pragma once
// What the outer loop needs of the world: hand in encoded chunks, get back the round's result bytes.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "isthmus/base/aligned.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/buffer_pool.h"
#include "isthmus/outer_sync/layout.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/quant/passes.h"

namespace isthmus::outer_sync {

/// Bytes of the largest chunk of a run.
[[nodiscard]] std::size_t largest_encoded_chunk(const FragmentLayout& layout,
                                                const protocol::CodecPlan& codecs);

/// A contribution of which no result can be made. `contribution` is its index among those of the chunk.
class BadContribution : public Error {
 public:
  BadContribution(const std::string& message, std::size_t index)
      : Error(ErrorKind::divergence, message), contribution(index) {}
  std::size_t contribution;
};

/// An owner's arithmetic: decode contributions in member order, add, divide, encode. Different chunks may be
/// reduced from different threads; rounds of one chunk come in order.
/// What an owner makes of a chunk's contributions.
struct Reduction {
  protocol::SharedBytes bytes;  ///< of the result
  protocol::Measured measured;
};

class Reducer {
 public:
  /// With error feedback the owner carries what encoding lost from round to round, by chunk. What warm-up
  /// rounds carry ends with them, since gradients and outer gradients are different quantities.
  Reducer(const FragmentLayout& layout, protocol::CodecPlan codecs);

  /// The encoded weighted mean, sum w_i x_i / sum w_i with w_i = weight_i / the largest weight: equal weights
  /// are 1, and their mean the plain one, bit for bit. `weights` (tokens behind each contribution) are as
  /// many as contributions; if all are 0 they count as equal. Of what the rule leaves out nothing is in it,
  /// not even the weight. Throws BadContribution naming the chunk where bytes do not decode, and with the
  /// largest of them where the mean cannot be encoded.
  [[nodiscard]] Reduction reduce(ChunkId chunk, protocol::Round round,
                                 std::span<const protocol::SharedBytes> contributions,
                                 std::span<const std::uint64_t> weights,
                                 const protocol::RejectRule& reject = {});
  /// The sum of the squares of what the bytes decode to, in fp64: sixteen sums side by side, element i in sum
  /// i mod 16, and then those in order. Infinity when they do not decode.
  [[nodiscard]] double squares(ChunkId chunk, protocol::Round round, const Bytes& bytes) const;

  /// What is carried of a chunk is void: a result was dropped, or others own it now.
  void forget(ChunkId chunk) { residuals_.at(chunk) = {}; }

  /// Residuals by chunk, for checkpoints. Nothing may be reduced meanwhile.
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
  Residuals residuals_;  ///< by chunk; empty where none is carried
  BufferPool buffers_;
  Pool<float> sums_;
};

/// Where stochastic rounding of a chunk takes its random numbers from.
[[nodiscard]] quant::Noise noise_of(const FragmentLayout& layout, ChunkId chunk, std::uint64_t seed,
                                    protocol::Round round);

/// What a round came to.
struct RoundResult {
  std::vector<protocol::SharedBytes> chunks;  ///< result bytes, in chunk order
  std::vector<bool> included;                 ///< by chunk: whether this replica's contribution is in it
  /// By chunk: whether it was left out for its norm (outer.reject) and does not come back. Empty: none was.
  std::vector<bool> rejected = {};
  /// That it was made of: what those who are in all chunks were trained on.
  std::vector<SampleRange> samples = {};
  /// When it was complete here: for those who measure.
  std::chrono::steady_clock::time_point came = std::chrono::steady_clock::now();
};

/// The outcome of wait(): the result, or none, and whether rounds commit.
struct Awaited {
  std::optional<RoundResult> result;
  bool commits = true;
};

/// A fragment's agreed state after a round: all that a replica needs to follow it from there on. Vectors are
/// as long as the fragment.
struct FragmentSnapshot {
  FragmentId fragment = 0;
  protocol::FragmentState state;
  std::shared_ptr<const AlignedVector<float>> theta, velocity;
  /// Where they were asked for: one member's inner optimizer at that moment (inner_moments.h); else null.
  std::shared_ptr<const AlignedVector<float>> first_moment{}, second_moment{};
  std::uint64_t inner_steps = 0;  ///< behind these moments
};

/// Thrown when this replica's rounds turn out not to be those of the run, or too far behind them: it goes on
/// with the state of others (MemberNode::catch_up).
class Displaced : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class RoundExchange {
 public:
  virtual ~RoundExchange() = default;
  /// Hands in one encoded chunk; returns at once. Called by one thread at a time, which may be another than
  /// the one that calls the rest. `weight`: tokens behind it; 0 for what is nothing yet. `samples`, with a
  /// fragment's first chunk only: the sequences behind it, at most protocol::most_trained_on ranges.
  virtual void contribute(ChunkId chunk, protocol::Round round, protocol::SharedBytes bytes,
                          std::uint64_t weight, const SampleSet& samples) = 0;
  /// Blocks until the round's results are here. No result when rounds do not commit at present, or when the
  /// next view forms without one of the trainers and the caller `can_train_on`: train on, and ask again after
  /// the next step. (Who has no step to make asks again at once, so it waits for a moment before it gives
  /// up.) Throws Error(network) when they cannot come any more, and Displaced.
  [[nodiscard]] virtual Awaited wait(FragmentId fragment, protocol::Round round, bool can_train_on) = 0;
  /// The round is in the global parameters here. `samples` came with its result; none with a round that is
  /// followed.
  virtual void applied(FragmentId fragment, protocol::Round round, const Digest& chain,
                       std::vector<SampleRange> samples) = 0;

  /// Digest of a fragment's global parameters and momentum after an audited round (protocol/audits.h).
  virtual void audited(const protocol::Audit& /*audit*/) {}

  /// Who can give a fragment's state, with the inner optimizer's moments if `moments` (and there are any); it
  /// is called on the trainer's thread, from within wait() and serve().
  using StateSource = std::function<FragmentSnapshot(FragmentId, bool moments)>;
  /// Until it is called there is no state to give: in the warm-up it is the inner optimizer's too.
  virtual void serve_state_from(StateSource source) = 0;
  /// Called between two steps: answers the requests for state that have come in.
  virtual void serve() = 0;

  /// Where others stood when this replica came back to them after they had gone on without it; 0 if they have
  /// not.
  [[nodiscard]] virtual std::uint64_t agreed_step() const { return 0; }

  /// What has been set in mid-run, as of the view that has begun here; null before the first. It changes
  /// between two calls only where no result of a later view has been given out.
  [[nodiscard]] virtual std::shared_ptr<const protocol::Settings> settings() const { return nullptr; }
  /// This replica has gone on under other settings than the run's: it must take the state from others.
  [[noreturn]] virtual void give_up(const std::string& reason) { throw outer_sync::Displaced(reason); }

  [[nodiscard]] virtual Reducer& reducer() = 0;
  /// Where the memory of what is handed in comes from.
  [[nodiscard]] const BufferPool& buffers() { return reducer().buffers(); }
};

}  // namespace isthmus::outer_sync
