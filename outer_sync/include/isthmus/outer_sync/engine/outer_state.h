#pragma once
// The outer loop's state for each parameter, next to the local parameters, and the operations on it. The loop
// knows schedule, rounds and chains; only the outer state knows where the numbers are stored and on which
// device its passes run.

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "isthmus/base/aligned.h"
#include "isthmus/base/archive.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/engine/local_parameters.h"
#include "isthmus/outer_sync/engine/round_exchange.h"
#include "isthmus/outer_sync/methods/eager.h"
#include "isthmus/outer_sync/methods/outer_rule.h"
#include "isthmus/quant/passes.h"

namespace isthmus::outer_sync {

/// How a round's outer gradients are encoded.
struct OuterEncoding {
  quant::CodecSpec codec;
  protocol::Round round = 0;
  float carried = 0;             ///< share of the residual added to this outer gradient
  std::uint64_t noise_seed = 0;  ///< this replica's seed for stochastic rounding
};

/// One encoded chunk. `bad_element`, an index in the chunk, is set if it could not be encoded.
struct EncodedChunk {
  ChunkId chunk;
  std::optional<std::size_t> bad_element;
  protocol::SharedBytes bytes;
};

/// Encoded chunks that another thread is still handing over. The destructor waits for the last one and
/// discards errors.
class HandOver {
 public:
  HandOver() = default;  ///< everything is handed over
  explicit HandOver(std::shared_future<void> done) : done_(std::move(done)) {}
  HandOver(HandOver&&) = default;
  HandOver& operator=(HandOver&& other) noexcept {
    std::swap(done_, other.done_);
    return *this;
  }
  ~HandOver() {
    if (done_.valid()) done_.wait();
  }

  /// Waits until the last chunk is handed over. Throws once what `leave` or the device threw.
  void finish() {
    if (done_.valid()) std::exchange(done_, {}).get();
  }
  /// Throws like finish() if the hand-over has ended; does not wait.
  void check() {
    if (done_.valid() && done_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) finish();
  }

 private:
  std::shared_future<void> done_;
};

class OuterState {
 public:
  virtual ~OuterState() = default;

  /// Encodes a fragment's outer gradient, global minus local parameters + carried * residual, into memory
  /// from `buffers`. `leave` receives each chunk, in order, as soon as it is encoded: on this thread before
  /// the call returns, or on another one before HandOver::finish() returns.
  using Leave = std::function<void(EncodedChunk)>;
  [[nodiscard]] virtual HandOver encode(FragmentId fragment, const OuterEncoding& how,
                                        const BufferPool& buffers, Leave leave) = 0;
  /// Products of a fragment's velocity and the decoded `results`, its chunks in order; nullopt if one does
  /// not decode.
  [[nodiscard]] virtual std::optional<quant::Products> products(
      FragmentId fragment, const quant::CodecSpec& codec, std::span<const protocol::SharedBytes> results) = 0;
  /// Makes one outer step on a fragment and merges it into the local parameters (docs/numerics.md).
  /// `results`: its chunks in order. Returns the first chunk that does not decode; the state is unusable
  /// then.
  [[nodiscard]] virtual std::optional<ChunkId> apply(FragmentId fragment, const quant::CodecSpec& codec,
                                                     std::span<const protocol::SharedBytes> results,
                                                     const methods::OuterRule& rule) = 0;

  /// Adds weight * decoded `own` to a fragment's local parameters. Call after `apply`. `own`: this replica's
  /// valid encoded chunks of the fragment, in order; null entries add nothing.
  virtual void shift_local(FragmentId fragment, const quant::CodecSpec& codec,
                           std::span<const protocol::SharedBytes> own, float weight) = 0;

  /// Whole-round overlap: sets a fragment's local parameters to the global ones. With eager updates
  /// (methods/eager.h) it also advances the eager correction and adds it. `fresh` and `stale` are this
  /// replica's chunks of this round and the previous one, in order; either may be empty or have null entries.
  /// `share` is 1 / M.
  virtual void go_ahead(FragmentId fragment, const quant::CodecSpec& codec,
                        std::span<const protocol::SharedBytes> fresh,
                        std::span<const protocol::SharedBytes> stale, float share,
                        const quant::OuterStep& step) = 0;

  /// global := local, for all parameters.
  virtual void take_local() = 0;
  /// local := global, for all parameters; clears residuals and the eager correction.
  virtual void begin_from_global() = 0;

  /// In host memory; valid until the next call to this object.
  [[nodiscard]] virtual std::span<const float> global(Range range) = 0;
  [[nodiscard]] virtual std::span<const float> velocity(Range range) = 0;
  /// Replaces a fragment's global parameters and velocity; both are as long as the fragment.
  virtual void install(FragmentId fragment, std::span<const float> theta,
                       std::span<const float> velocity) = 0;
  [[nodiscard]] virtual LocalParameters& local() = 0;

  /// Norm of a fragment's local minus global parameters.
  [[nodiscard]] virtual double spread(FragmentId fragment) = 0;
  /// Digest of a fragment's global parameters and velocity (audit.h).
  [[nodiscard]] virtual std::uint64_t audit(FragmentId fragment) = 0;

  /// The state that a checkpoint keeps, in host memory.
  struct Vectors {
    AlignedVector<float> global, velocity;       ///< flat, whole buffer; the same on all replicas
    Reducer::Residuals residuals;                ///< by chunk; empty if a chunk has none
    AlignedVector<float> ahead, ahead_velocity;  ///< eager updates: flat like `global`; otherwise empty
  };
  /// Writes `global` and `velocity`.
  virtual void save_agreed(BinaryWriter& out) = 0;
  /// Writes the other vectors, in order.
  virtual void save_own(BinaryWriter& out) = 0;
  /// The vectors must fit this layout (`fits`).
  virtual void restore(Vectors vectors) = 0;
};

/// |x - y| from their products.
[[nodiscard]] double distance_of(const quant::Products& products);

/// Whether saved vectors have this layout's shape; `eager`: whether the run has eager updates.
[[nodiscard]] bool fits(const OuterState::Vectors& vectors, const FragmentLayout& layout, bool eager);

/// The outer state in host memory, computed by the CPU's passes.
class HostOuterState final : public OuterState {
 public:
  /// Global parameters start as the local ones, velocity and residual as zero; residuals exist only with
  /// error feedback. The references must outlive this object.
  HostOuterState(const FragmentLayout& layout, LocalParameters& local, bool error_feedback,
                 bool eager = false);

  [[nodiscard]] HandOver encode(FragmentId fragment, const OuterEncoding& how, const BufferPool& buffers,
                                Leave leave) override;
  void shift_local(FragmentId fragment, const quant::CodecSpec& codec,
                   std::span<const protocol::SharedBytes> own, float weight) override;
  [[nodiscard]] std::optional<quant::Products> products(
      FragmentId fragment, const quant::CodecSpec& codec,
      std::span<const protocol::SharedBytes> results) override;
  [[nodiscard]] std::optional<ChunkId> apply(FragmentId fragment, const quant::CodecSpec& codec,
                                             std::span<const protocol::SharedBytes> results,
                                             const methods::OuterRule& rule) override;
  void go_ahead(FragmentId fragment, const quant::CodecSpec& codec,
                std::span<const protocol::SharedBytes> fresh, std::span<const protocol::SharedBytes> stale,
                float share, const quant::OuterStep& step) override;
  void take_local() override;
  void begin_from_global() override;
  [[nodiscard]] std::span<const float> global(Range range) override;
  [[nodiscard]] std::span<const float> velocity(Range range) override;
  void install(FragmentId fragment, std::span<const float> theta, std::span<const float> velocity) override;
  [[nodiscard]] LocalParameters& local() override { return local_; }
  [[nodiscard]] double spread(FragmentId fragment) override;
  [[nodiscard]] std::uint64_t audit(FragmentId fragment) override;
  void save_agreed(BinaryWriter& out) override;
  void save_own(BinaryWriter& out) override;
  void restore(Vectors vectors) override;

 private:
  [[nodiscard]] quant::Feedback feedback(ChunkId chunk, float carried);
  [[nodiscard]] std::span<const float> start(Range range);

  const FragmentLayout& layout_;
  LocalParameters& local_;
  const bool error_feedback_;
  AlignedVector<float> global_, velocity_;
  Reducer::Residuals residuals_;
  std::optional<methods::Ahead> ahead_;  ///< only with eager updates
  AlignedVector<float> scratch_;
};

}  // namespace isthmus::outer_sync
