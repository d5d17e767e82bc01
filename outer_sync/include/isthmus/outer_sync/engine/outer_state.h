#pragma once
// The outer loop's state for each parameter, next to the local parameters, and the operations on it. The loop
// knows schedule, rounds and chains; the outer state knows vectors, chunks and residuals, and leaves to its
// Passes in which memory the numbers are and which device computes. The trainer's thread makes all calls.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "isthmus/base/aligned.h"
#include "isthmus/base/archive.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/engine/chunk_transfer.h"
#include "isthmus/outer_sync/engine/local_parameters.h"
#include "isthmus/outer_sync/engine/reducer.h"

namespace isthmus::outer_sync {

/// How a round's outer gradients are encoded.
struct OuterEncoding {
  quant::CodecSpec codec;
  protocol::Round round = 0;
  float carried = 0;             ///< share of the residual added to this outer gradient
  std::uint64_t noise_seed = 0;  ///< this replica's seed for stochastic rounding
  bool uses_residual = true;     ///< false: the residual is neither added nor changed
};

class OuterState {
 public:
  /// In host memory. Global parameters start as the local ones, velocity and residual as zero; residuals
  /// exist only with error feedback of the sender. The references must outlive this object.
  OuterState(const FragmentLayout& layout, LocalParameters& local, bool error_feedback);
  /// In the memory of a device, with the same bits. `codecs` are the
  /// run's. Allocates all its memory.
  OuterState(const FragmentLayout& layout, const protocol::CodecPlan& codecs, DeviceParameters& local,
             std::unique_ptr<Passes> passes, const Staging& staging = {});

  /// Encodes a fragment's outer gradient, global minus local parameters + carried * residual, into memory
  /// from `buffers`. `on_encoded` receives each chunk, in order, as soon as it is encoded: on this thread
  /// before the call returns, or on another one before HandOver::finish() returns (ChunkTransfer::send).
  using OnEncoded = ChunkTransfer::OnEncoded;
  [[nodiscard]] HandOver encode(FragmentId fragment, const OuterEncoding& how, const BufferPool& buffers,
                                OnEncoded on_encoded);
  /// Products of a fragment's velocity and the decoded `results`, its chunks in order; nullopt if one does
  /// not decode.
  [[nodiscard]] std::optional<quant::Products> products(FragmentId fragment, const quant::CodecSpec& codec,
                                                        std::span<const protocol::SharedBytes> results);
  /// Makes one outer step on a fragment and merges it into the local parameters (docs/numerics.md).
  /// `results`: its chunks in order. Returns the first chunk that does not decode; nothing is changed then.
  [[nodiscard]] std::optional<ChunkId> apply(FragmentId fragment, const quant::CodecSpec& codec,
                                             std::span<const protocol::SharedBytes> results,
                                             const quant::OuterStep& step);
  /// Valid encoded chunks of a fragment, in order, and their weight; null entries add nothing.
  struct Shift {
    std::span<const protocol::SharedBytes> chunks;
    float weight;
  };
  /// Adds weight * decoded chunks to a fragment's local parameters, for one shift after the other.
  void shift_local(FragmentId fragment, const quant::CodecSpec& codec, std::initializer_list<Shift> shifts);

  /// global := local, for all parameters.
  void take_local();
  /// local := global, for all parameters; clears residuals.
  void begin_from_global();

  /// In host memory; valid until the next call to this object.
  [[nodiscard]] std::span<const float> global(Range range);
  [[nodiscard]] std::span<const float> velocity(Range range);
  /// Replaces a fragment's global parameters and velocity; both are as long as the fragment.
  void install(FragmentId fragment, std::span<const float> theta, std::span<const float> velocity);
  [[nodiscard]] LocalParameters& local() { return local_; }

  /// Norm of a fragment's local minus global parameters.
  [[nodiscard]] double spread(FragmentId fragment);
  /// Digest of a fragment's global parameters and velocity (state_digest.h).
  [[nodiscard]] std::uint64_t digest(FragmentId fragment);

  /// The state that a checkpoint keeps, in host memory.
  struct Vectors {
    AlignedVector<float> global, velocity;  ///< flat, whole buffer; the same on all replicas
    Reducer::Residuals residuals;           ///< by chunk; empty if a chunk has none
  };
  /// Writes `global` and `velocity`.
  void save_agreed(BinaryWriter& out);
  /// Writes the residuals.
  void save_own(BinaryWriter& out);
  /// The vectors must fit this layout (`fits`).
  void restore(const Vectors& vectors);

 private:
  /// A vector of the passes' memory, as long as the flat buffer.
  struct Flat {
    std::shared_ptr<std::byte> memory;
    std::span<float> values;
    [[nodiscard]] std::span<float> part(Range range) const { return values.subspan(range.begin, range.size); }
  };

  [[nodiscard]] Flat flat();
  void prepare(const StagingRoom& room);
  [[nodiscard]] std::span<const float> read_local(Range range);
  [[nodiscard]] std::span<float> modify_local(Range range);
  void local_modified(Range range);
  [[nodiscard]] std::optional<ChunkId> first_invalid(FragmentId fragment, const quant::CodecSpec& codec,
                                                     std::span<const protocol::SharedBytes> results) const;
  [[nodiscard]] std::span<quant::Products> device_tiles(std::size_t first, std::size_t count) const;
  [[nodiscard]] quant::Products sum_of_tiles(std::size_t count);
  [[nodiscard]] std::span<const float> download(std::span<const float> values, AlignedVector<float>& to);
  void fill(std::span<float> to, std::span<const float> values);
  void finish_copies();

  const FragmentLayout& layout_;
  LocalParameters& local_;
  DeviceParameters* const device_;  ///< the local parameters in the passes' memory; null: in host memory
  const bool error_feedback_;
  std::unique_ptr<Passes> passes_;
  Flat global_, velocity_, residual_;  ///< residual_ only with error feedback
  /// One decoded batch, and the products of a fragment's tiles in the passes' memory and on the host.
  std::shared_ptr<std::byte> decoded_, device_tiles_, host_tiles_;
  AlignedVector<float> host_global_,
      host_velocity_;     ///< from a device: last returned by global(), velocity()
  ChunkTransfer chunks_;  ///< declared last: its hand-over ends before the memory is freed
};

/// |x - y| from their products.
[[nodiscard]] double distance_of(const quant::Products& products);

/// Whether saved vectors have this layout's shape.
[[nodiscard]] bool fits(const OuterState::Vectors& vectors, const FragmentLayout& layout);

}  // namespace isthmus::outer_sync
