#pragma once
// The passes of passes.h over memory of one GPU: the same bytes and bits, on a stream of its own with the
// highest priority and on few of the GPU's processors, so that they run beside what a model computes.
// Spans are of that GPU's memory throughout, and streams are cudaStream_t.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "isthmus/quant/codec.h"
#include "isthmus/quant/passes.h"

namespace isthmus::quant {

/// Whether this build has CUDA and this machine a GPU for it.
[[nodiscard]] bool cuda_available();

struct CudaPassesOptions {
  int ordinal = 0;                 ///< which GPU
  std::size_t thread_blocks = 16;  ///< at most as many run at once, of 256 threads each
  std::size_t marks = 64;          ///< how many CudaMarks there may be at a time
};

class CudaPasses;

/// A point in the stream behind a pass. Its place in the pool is free again when the mark is gone, which
/// waits for the pass if nobody has.
class CudaMark {
 public:
  CudaMark(CudaMark&& other) noexcept;
  CudaMark& operator=(CudaMark&&) = delete;
  ~CudaMark();

  /// Whether the pass is done; does not wait.
  [[nodiscard]] bool is_done() const;
  /// Waits for the pass. An encoder's returns the index of the first element that cannot be encoded, as in
  /// passes.h.
  std::optional<std::size_t> wait();
  /// What is put into that stream from now on runs after the pass.
  void before(void* stream) const;

 private:
  friend class CudaPasses;
  CudaMark(CudaPasses& passes, std::size_t place) : passes_(&passes), place_(place) {}

  CudaPasses* passes_;  // null: moved from
  std::size_t place_;
};

/// Passes run in the order of the calls, which return at once; one thread at a time may call, while another
/// one waits for marks. Nothing is allocated after construction.
class CudaPasses {
 public:
  /// Throws Error(config) if there is no such GPU or this build has no CUDA.
  explicit CudaPasses(const CudaPassesOptions& options);
  /// Waits for what was queued. Marks must be gone.
  ~CudaPasses();
  CudaPasses(const CudaPasses&) = delete;
  CudaPasses& operator=(const CudaPasses&) = delete;

  /// Passes from now on run after what has been put into that stream.
  void after(void* stream);
  /// What is put into that stream from now on runs after all passes so far.
  void before(void* stream);
  /// For copies and waits of the caller's own.
  [[nodiscard]] void* stream() const;

  // Each is one kernel. A run may be encoded in chunks that are multiples of unit_of(spec), each with its own
  // mark: a chunk can leave while the next is encoded.

  [[nodiscard]] CudaMark encode(const CodecSpec& spec, std::span<const float> x, Feedback feedback,
                                const Noise& noise, std::span<std::byte> out);
  [[nodiscard]] CudaMark encode_difference(const CodecSpec& spec, std::span<const float> minuend,
                                           std::span<const float> subtrahend, Feedback feedback,
                                           const Noise& noise, std::span<std::byte> out);
  [[nodiscard]] CudaMark encode_quotient(const CodecSpec& spec, std::span<const float> sum, float divisor,
                                         Feedback feedback, const Noise& noise, std::span<std::byte> out);

  // Decoders take bytes that quant::valid has accepted while they were in the host's memory, where bytes from
  // the network arrive. Others give other values, never an access outside the spans.

  void decode(const CodecSpec& spec, std::span<const std::byte> in, std::span<float> out);
  void decode_accumulate(const CodecSpec& spec, std::span<const std::byte> in, float weight,
                         std::span<float> sum);
  void decode_apply(const CodecSpec& spec, std::span<const std::byte> in, const OuterStep& step,
                    std::span<float> theta, std::span<float> velocity, std::span<float> local);

  /// The products of each tile of two vectors (passes.h), in that GPU's memory too.
  void products(std::span<const float> x, std::span<const float> y, std::span<Products> tiles);

  /// Behind all passes so far; of a decoder, to learn when its bytes may be overwritten.
  [[nodiscard]] CudaMark mark();

 private:
  friend class CudaMark;
  class Gpu;

  std::unique_ptr<Gpu> gpu_;
};

}  // namespace isthmus::quant
