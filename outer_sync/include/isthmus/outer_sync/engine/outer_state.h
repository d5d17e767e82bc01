#pragma once
// What the outer loop keeps for each parameter, beside the local parameters, and what it does with it. The
// loop knows schedule, rounds and chains; where the numbers lie, and on which device their passes run, is
// known here alone.

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
  float carried = 0;             ///< part of the residual that goes into this outer gradient
  std::uint64_t noise_seed = 0;  ///< of stochastic rounding: this replica's own
};

/// One encoded chunk; `bad_element`, counted in the chunk, is set where it could not be encoded.
struct EncodedChunk {
  ChunkId chunk;
  std::optional<std::size_t> bad_element;
  protocol::SharedBytes bytes;
};

/// Encoded chunks that another thread is still handing over. Its destructor waits for the last one, and drops
/// an error.
class HandOver {
 public:
  HandOver() = default;  ///< all are handed over
  explicit HandOver(std::shared_future<void> done) : done_(std::move(done)) {}
  HandOver(HandOver&&) = default;
  HandOver& operator=(HandOver&& other) noexcept {
    std::swap(done_, other.done_);
    return *this;
  }
  ~HandOver() {
    if (done_.valid()) done_.wait();
  }

  /// Waits until the last one is handed over. Throws what `leave` or the device threw, once.
  void finish() {
    if (done_.valid()) std::exchange(done_, {}).get();
  }
  /// Throws it if that is known by now; does not wait.
  void check() {
    if (done_.valid() && done_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) finish();
  }

 private:
  std::shared_future<void> done_;
};

class OuterState {
 public:
  virtual ~OuterState() = default;

  /// Encodes a fragment's outer gradient, global minus local parameters + carried * residual, in the memory
  /// of `buffers`. `leave` gets every chunk in order, as soon as it is encoded: on this thread before the
  /// call returns, or on another one before HandOver::finish() does.
  using Leave = std::function<void(EncodedChunk)>;
  [[nodiscard]] virtual HandOver encode(FragmentId fragment, const OuterEncoding& how,
                                        const BufferPool& buffers, Leave leave) = 0;
  /// Of a fragment's velocity and what `results`, its chunks in order, decode to; nothing where one does not.
  [[nodiscard]] virtual std::optional<quant::Products> products(
      FragmentId fragment, const quant::CodecSpec& codec, std::span<const protocol::SharedBytes> results) = 0;
  /// One outer step on a fragment and its merge into the local parameters (docs/numerics.md). `results` are
  /// its chunks in order. Returns the first that does not decode: the state is then of no use any more.
  [[nodiscard]] virtual std::optional<ChunkId> apply(FragmentId fragment, const quant::CodecSpec& codec,
                                                     std::span<const protocol::SharedBytes> results,
                                                     const methods::OuterRule& rule) = 0;

  /// Adds weight * what `own` decodes to to a fragment's local parameters. To follow `apply`; `own` are what
  /// this replica had encoded for the fragment's chunks, in order, and decode. Null entries add nothing.
  virtual void shift_local(FragmentId fragment, const quant::CodecSpec& codec,
                           std::span<const protocol::SharedBytes> own, float weight) = 0;

  /// Whole-round overlap: sets a fragment's local parameters to the global ones. With eager updates
  /// (methods/eager.h) it takes the next step of what this replica is ahead by, and adds that. `fresh` and
  /// `stale` are its own chunks of this round and of the one before, in order; either may be empty, or lack
  /// some. `share` is 1 / M.
  virtual void go_ahead(FragmentId fragment, const quant::CodecSpec& codec,
                        std::span<const protocol::SharedBytes> fresh,
                        std::span<const protocol::SharedBytes> stale, float share,
                        const quant::OuterStep& step) = 0;

  /// global := local, of all parameters.
  virtual void take_local() = 0;
  /// local := global, of all parameters; residuals are forgotten.
  virtual void begin_from_global() = 0;

  /// In host memory; valid until the next call of anything here.
  [[nodiscard]] virtual std::span<const float> global(Range range) = 0;
  [[nodiscard]] virtual std::span<const float> velocity(Range range) = 0;
  /// Replaces a fragment's global parameters and velocity; both are as long as the fragment.
  virtual void install(FragmentId fragment, std::span<const float> theta,
                       std::span<const float> velocity) = 0;
  [[nodiscard]] virtual LocalParameters& local() = 0;

  /// The norm of a fragment's local minus its global parameters.
  [[nodiscard]] virtual double spread(FragmentId fragment) = 0;
  /// Digest of a fragment's global parameters and velocity (audit.h).
  [[nodiscard]] virtual std::uint64_t audit(FragmentId fragment) = 0;

  /// What a checkpoint keeps of it; in host memory.
  struct Vectors {
    AlignedVector<float> global, velocity;       ///< flat, whole buffer; all replicas have the same
    Reducer::Residuals residuals;                ///< by chunk; empty where there is none
    AlignedVector<float> ahead, ahead_velocity;  ///< eager updates: as `global`; otherwise empty
  };
  /// Writes `global` and `velocity`.
  virtual void save_agreed(BinaryWriter& out) = 0;
  /// Writes the others, in order.
  virtual void save_own(BinaryWriter& out) = 0;
  /// The shape must be this layout's (`fits`).
  virtual void restore(Vectors vectors) = 0;
};

/// |x - y| from their products.
[[nodiscard]] double distance_of(const quant::Products& products);

/// Whether saved vectors are of this layout, and of a run with eager updates or without.
[[nodiscard]] bool fits(const OuterState::Vectors& vectors, const FragmentLayout& layout, bool eager);

/// In host memory, by the CPU's passes.
class HostOuterState final : public OuterState {
 public:
  /// Global parameters start as the local ones, velocity and residual as zero; there is a residual with
  /// error feedback only. The references must outlive this.
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
  std::optional<methods::Ahead> ahead_;  ///< with eager updates
  AlignedVector<float> scratch_;
};

}  // namespace isthmus::outer_sync
