#pragma once
// The memory that holds the outer state, and the passes of quant/passes.h on it: host memory (HostPasses), or
// a GPU's (trainer/cuda/device_passes.h).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "isthmus/quant/passes.h"

namespace isthmus::outer_sync {

/// Calls are queued in order and run concurrently with the queue in which the model computes; in host memory
/// they run at once. One thread makes all calls; another may wait for marks. Throws Error(data) when a device
/// reports a fault.
class Passes {
 public:
  virtual ~Passes() = default;

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
  /// Waits, and returns outer_sync::digest_of(values) (state_digest.h).
  [[nodiscard]] virtual std::uint64_t digest(std::span<const float> values) = 0;
  [[nodiscard]] virtual std::unique_ptr<Mark> mark() = 0;

  /// Passes queued from now on run after everything that the model has queued so far.
  virtual void after_model() = 0;
  /// Everything that the model queues from now on runs after all passes queued so far.
  virtual void before_model() = 0;
};

}  // namespace isthmus::outer_sync
