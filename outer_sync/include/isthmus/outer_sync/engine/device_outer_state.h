#pragma once
// The outer state in the memory of a device (a GPU). Its passes run there, concurrently with the model's
// computation. Parameters come to the host only for checkpoints, evaluations and state transfers; encoded
// bytes come in every round.

#include <cstddef>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "isthmus/outer_sync/engine/outer_state.h"
#include "isthmus/quant/passes.h"

namespace isthmus::outer_sync {

/// A device's memory and the passes of quant/passes.h on it. Calls are queued in order and run concurrently
/// with the queue in which the model computes. One thread makes all calls; another may wait for marks. Throws
/// Error(data) when the device reports a fault.
class DevicePasses {
 public:
  virtual ~DevicePasses() = default;

  /// Allocates `bytes` aligned for every pass, with unspecified content. Freed with the last handle, once no
  /// queued operation uses the memory.
  [[nodiscard]] virtual std::shared_ptr<std::byte> device_memory(std::size_t bytes) = 0;
  /// Allocates host memory from and to which copies run asynchronously.
  [[nodiscard]] virtual std::shared_ptr<std::byte> host_memory(std::size_t bytes) = 0;

  /// A point in the queue. It must not outlive the passes.
  class Mark {
   public:
    virtual ~Mark() = default;
    /// Waits for everything queued before the mark. For an encoder's mark, returns the first element that
    /// cannot be encoded, as in quant/passes.h.
    virtual std::optional<std::size_t> wait() = 0;
  };
  static constexpr std::size_t marks = 1024;  ///< maximum number of marks at a time

  /// Copies between any two memories; both must stay valid until the copy is done.
  virtual void copy(const void* from, void* to, std::size_t bytes) = 0;
  virtual void clear(std::span<float> values) = 0;
  [[nodiscard]] virtual std::unique_ptr<Mark> encode_difference(
      const quant::CodecSpec& spec, std::span<const float> minuend, std::span<const float> subtrahend,
      quant::Feedback feedback, const quant::Noise& noise, std::span<std::byte> out) = 0;
  // The bytes to decode must have been validated on the host.
  virtual void decode_accumulate(const quant::CodecSpec& spec, std::span<const std::byte> in, float weight,
                                 std::span<float> sum) = 0;
  virtual void decode_apply(const quant::CodecSpec& spec, std::span<const std::byte> in,
                            const quant::OuterStep& step, std::span<float> theta, std::span<float> velocity,
                            std::span<float> local) = 0;
  /// Writes the products of each tile of two vectors (quant/passes.h) to device memory.
  virtual void products(std::span<const float> x, std::span<const float> y,
                        std::span<quant::Products> tiles) = 0;
  /// Waits, and returns outer_sync::digest_of(values) (audit.h).
  [[nodiscard]] virtual std::uint64_t digest(std::span<const float> values) = 0;
  [[nodiscard]] virtual std::unique_ptr<Mark> mark() = 0;

  /// Passes queued from now on run after everything that the model has queued so far.
  virtual void after_model() = 0;
  /// Everything that the model queues from now on runs after all passes queued so far.
  virtual void before_model() = 0;
};

/// Local parameters in device memory.
class DeviceParameters : public LocalParameters {
 public:
  /// All parameters, flat; the address never changes.
  [[nodiscard]] virtual std::span<float> device_values() = 0;
  /// Call after changing this range on the device: makes the change visible to the model (bf16 twin). The
  /// change must be ordered before the model's next computation.
  virtual void modified_on_device(Range range) = 0;
};

/// Limits of the buffers through which encoded chunks pass between device and host. Chunks are encoded and
/// decoded in batches, because a pass over few elements takes less time than queueing it.
struct Staging {
  std::uint64_t batch_elements = 1 << 20;
  std::size_t outgoing = 256 << 20;  ///< bytes; exceeded only if two batches need more
  std::size_t incoming = 32 << 20;   ///< likewise
};

/// Consecutive chunks of one fragment that one pass processes together: their encodings are joined.
struct ChunkBatch {
  ChunkId first, last;
  Range range;  ///< in the flat buffer
};

/// Buffer sizes for the batches of a layout, within these limits.
struct StagingRoom {
  StagingRoom(const FragmentLayout& layout, const quant::CodecSpec& codec, const Staging& staging = {});

  std::size_t slot = 0;                    ///< bytes of the longest encoded batch, aligned
  std::size_t outgoing = 0, incoming = 0;  ///< number of slots
  std::size_t decoded = 0, tiles = 0;  ///< bytes of the longest batch in fp32, and of a fragment's products
  [[nodiscard]] std::size_t on_device() const { return (outgoing + incoming) * slot + decoded + tiles; }
  [[nodiscard]] std::size_t on_host() const { return (outgoing + incoming) * slot + tiles; }
};

/// Computes the same bits as HostOuterState. It does not support eager and co2.
class DeviceOuterState : public OuterState {
 public:
  /// As HostOuterState; `codecs` are the run's. Allocates all its memory.
  DeviceOuterState(const FragmentLayout& layout, const protocol::CodecPlan& codecs, DeviceParameters& local,
                   std::unique_ptr<DevicePasses> passes, const Staging& staging = {});
  ~DeviceOuterState() override;

  /// Queues the passes and returns; another thread calls `leave`. If a fragment needs more than
  /// Staging::outgoing or has more than marks / 4 batches, its first batches are handed over before the call
  /// returns.
  [[nodiscard]] HandOver encode(FragmentId fragment, const OuterEncoding& how, const BufferPool& buffers,
                                Leave leave) override;
  [[nodiscard]] std::optional<quant::Products> products(
      FragmentId fragment, const quant::CodecSpec& codec,
      std::span<const protocol::SharedBytes> results) override;
  [[nodiscard]] std::optional<ChunkId> apply(FragmentId fragment, const quant::CodecSpec& codec,
                                             std::span<const protocol::SharedBytes> results,
                                             const methods::OuterRule& rule) override;
  void shift_local(FragmentId fragment, const quant::CodecSpec& codec,
                   std::span<const protocol::SharedBytes> own, float weight) override;
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
  using Mark = std::unique_ptr<DevicePasses::Mark>;
  /// A device vector as long as the flat buffer.
  struct Flat {
    std::shared_ptr<std::byte> memory;
    std::span<float> values;
    [[nodiscard]] std::span<float> part(Range range) const { return values.subspan(range.begin, range.size); }
  };
  /// Space for one encoded batch on the device and on the host.
  struct Slot {
    std::span<std::byte> device, host;
    Mark busy;  ///< after the last pass or copy that uses the slot
  };
  /// Slots used in rotation.
  struct Slots {
    std::shared_ptr<std::byte> device, host;
    std::vector<Slot> slots;
    std::size_t next = 0;
  };
  /// An encoded batch on its way to the host.
  struct Leaving {
    ChunkBatch batch;
    Slot* slot;
    Mark encoded;
  };

  [[nodiscard]] Flat flat();
  [[nodiscard]] Slots make_slots(std::size_t count, std::size_t bytes) const;
  [[nodiscard]] static Slot& next_slot(Slots& slots);
  [[nodiscard]] std::vector<ChunkBatch> batches_of(FragmentId fragment, const quant::CodecSpec& codec) const;
  [[nodiscard]] std::optional<ChunkId> first_invalid(FragmentId fragment, const quant::CodecSpec& codec,
                                                     std::span<const protocol::SharedBytes> results) const;
  void hand_over(const Leaving& leaving, const quant::CodecSpec& codec, const BufferPool& buffers,
                 const Leave& leave) const;
  [[nodiscard]] std::span<const std::byte> upload(const ChunkBatch& batch, const quant::CodecSpec& codec,
                                                  std::span<const protocol::SharedBytes> chunks, Slot& slot);
  [[nodiscard]] std::span<quant::Products> device_tiles(std::size_t first, std::size_t count) const;
  [[nodiscard]] quant::Products sum_of_tiles(std::size_t count);
  [[nodiscard]] std::span<const float> download(std::span<const float> values, AlignedVector<float>& to);
  void fill(std::span<float> to, std::span<const float> values);
  void finish_copies();

  const FragmentLayout& layout_;
  DeviceParameters& local_;
  const bool error_feedback_;
  const Staging staging_;
  std::unique_ptr<DevicePasses> passes_;
  Flat global_, velocity_, residual_;  ///< residual_ only with error feedback
  Slots outgoing_, incoming_;
  std::deque<Leaving> leaving_;           ///< owned by the other thread during a hand-over
  std::shared_future<void> handed_over_;  ///< end of the last hand-over; invalid before the first
  /// One decoded batch, and the products of a fragment's tiles on the device and on the host.
  std::shared_ptr<std::byte> decoded_, device_tiles_, host_tiles_;
  AlignedVector<float> host_global_, host_velocity_;  ///< values last returned by global() and velocity()
};

}  // namespace isthmus::outer_sync
