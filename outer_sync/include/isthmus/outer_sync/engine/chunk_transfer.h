#pragma once
// How encoded chunks pass between the loop, which has them in host memory, and the memory of the passes. On a
// device: in batches, through pinned memory, and another thread hands encoded chunks over. In host memory:
// chunk by chunk and without a copy. The trainer's thread makes all calls.

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/buffer_pool.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/engine/passes.h"
#include "isthmus/outer_sync/protocol/member.h"

namespace isthmus::outer_sync {

/// One encoded chunk. `bad_element`, an index in the chunk, is set if it could not be encoded.
struct EncodedChunk {
  ChunkId chunk;
  std::optional<std::size_t> bad_element;
  protocol::SharedBytes bytes;
};

/// The error for an encoded chunk with a `bad_element`. `values`: what was encoded, such as "a gradient".
[[nodiscard]] Error bad_element(const FragmentLayout& layout, const EncodedChunk& encoded,
                                const std::string& values, std::uint64_t step);

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

  /// Waits until the last chunk is handed over. Throws once what `on_encoded` or the device threw.
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

/// Tiles of a vector's products (quant/passes.h).
[[nodiscard]] constexpr std::size_t tiles_in(std::size_t elements) {
  return (elements + quant::products_tile - 1) / quant::products_tile;
}

/// Buffer sizes for the batches of a layout, within these limits.
struct StagingRoom {
  StagingRoom(const FragmentLayout& layout, const quant::CodecSpec& codec, const Staging& staging = {});

  std::size_t slot = 0;                    ///< bytes of the longest encoded batch, aligned
  std::size_t outgoing = 0, incoming = 0;  ///< number of slots
  std::size_t decoded = 0, tiles = 0;  ///< bytes of the longest batch in fp32, and of a fragment's products
  [[nodiscard]] std::size_t on_device() const { return (outgoing + incoming) * slot + decoded + tiles; }
  [[nodiscard]] std::size_t on_host() const { return (outgoing + incoming) * slot + tiles; }
};

class ChunkTransfer {
 public:
  /// In host memory.
  ChunkTransfer(const FragmentLayout& layout, Passes& passes)
      : layout_(layout), passes_(passes), staging_{.batch_elements = 0} {}
  /// On a device. The references must outlive this object.
  ChunkTransfer(const FragmentLayout& layout, Passes& passes, const StagingRoom& room,
                const Staging& staging);
  /// Waits for the last hand-over.
  ~ChunkTransfer();
  ChunkTransfer(const ChunkTransfer&) = delete;
  ChunkTransfer& operator=(const ChunkTransfer&) = delete;

  /// Queues the encoding of a batch to `out`.
  using Encode = std::function<std::unique_ptr<Passes::Mark>(const ChunkBatch&, std::span<std::byte> out)>;
  /// Receives each chunk of a fragment, in order, as soon as it is encoded.
  using OnEncoded = std::function<void(EncodedChunk)>;
  /// Encodes a fragment into memory from `buffers`. On a device it queues the passes and returns, and another
  /// thread calls `on_encoded`; if the fragment needs more than Staging::outgoing or has more than marks / 4
  /// batches, its first batches are handed over before the call returns.
  [[nodiscard]] HandOver send(FragmentId p, const quant::CodecSpec& codec, const BufferPool& buffers,
                              OnEncoded on_encoded, const Encode& encode);

  /// The batches of these chunks of a fragment; null entries are left out.
  [[nodiscard]] std::vector<ChunkBatch> batches_of(FragmentId p, const quant::CodecSpec& codec,
                                                   std::span<const protocol::SharedBytes> chunks) const;
  /// Brings a batch's encoding to the memory of the passes. `chunks`: all of the fragment.
  [[nodiscard]] std::span<const std::byte> load(const ChunkBatch& batch, const quant::CodecSpec& codec,
                                                std::span<const protocol::SharedBytes> chunks);
  /// The passes that read the loaded batch are queued.
  void loaded();

 private:
  using Mark = std::unique_ptr<Passes::Mark>;
  /// Space for one encoded batch on the device and on the host.
  struct Slot {
    std::span<std::byte> device, host;
    Mark busy;  ///< after the last pass or copy that uses the slot
  };
  /// Slots used in rotation; none in host memory.
  struct Slots {
    std::shared_ptr<std::byte> device, host;
    std::vector<Slot> slots;
    std::size_t next = 0;
  };
  /// An encoded batch on its way to the host.
  struct EncodedBatch {
    ChunkBatch batch;
    Slot* slot;
    Mark encoded;
  };

  [[nodiscard]] Slots make_slots(std::size_t count, std::size_t bytes) const;
  [[nodiscard]] static Slot& next_slot(Slots& slots);
  [[nodiscard]] bool in_host_memory() const { return outgoing_.slots.empty(); }
  void hand_over(const EncodedBatch& from, const quant::CodecSpec& codec, const BufferPool& buffers,
                 const OnEncoded& on_encoded) const;

  const FragmentLayout& layout_;
  Passes& passes_;
  const Staging staging_;
  Slots outgoing_, incoming_;
  Slot* loaded_ = nullptr;
  std::deque<EncodedBatch> encoded_;      ///< owned by the other thread during a hand-over
  std::shared_future<void> handed_over_;  ///< end of the last hand-over; invalid before the first
};

}  // namespace isthmus::outer_sync
