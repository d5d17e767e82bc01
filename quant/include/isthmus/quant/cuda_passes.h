#pragma once
// The passes of passes.h on the memory of one GPU, with the same bytes and bits. They run on their own stream
// with the highest priority and on few of the GPU's processors, concurrently with a model's computation. All
// spans are in that GPU's memory; streams are cudaStream_t.

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
  std::size_t thread_blocks = 16;  ///< maximum number that run at once, of 256 threads each
  std::size_t marks = 64;          ///< maximum number of CudaMarks at a time
};

class CudaPasses;

/// A point in the stream after a pass. The destructor waits for the pass and frees the mark's place in the
/// pool.
class CudaMark {
 public:
  CudaMark(CudaMark&& other) noexcept;
  CudaMark& operator=(CudaMark&&) = delete;
  ~CudaMark();

  /// Whether the pass is done; does not wait.
  [[nodiscard]] bool is_done() const;
  /// Waits for the pass. For an encoder, returns the index of the first element that cannot be encoded, as in
  /// passes.h.
  std::optional<std::size_t> wait();
  /// Work queued in that stream from now on runs after the pass.
  void before(void* stream) const;

 private:
  friend class CudaPasses;
  CudaMark(CudaPasses& passes, std::size_t place) : passes_(&passes), place_(place) {}

  CudaPasses* passes_;  // null: moved from
  std::size_t place_;
};

/// Passes run in the order of the calls, which return at once. One thread at a time may call; another one may
/// wait for marks. Nothing is allocated after construction.
class CudaPasses {
 public:
  /// Throws Error(config) if there is no such GPU or this build has no CUDA.
  explicit CudaPasses(const CudaPassesOptions& options);
  /// Waits for queued work. All marks must be destroyed before.
  ~CudaPasses();
  CudaPasses(const CudaPasses&) = delete;
  CudaPasses& operator=(const CudaPasses&) = delete;

  /// Passes from now on run after the work already queued in that stream.
  void after(void* stream);
  /// Work queued in that stream from now on runs after all passes so far.
  void before(void* stream);
  /// For the caller's own copies and waits.
  [[nodiscard]] void* stream() const;

  // Each encoder is one kernel. A run may be encoded in chunks that are multiples of unit_of(spec), each with
  // its own mark, so that a chunk can be sent while the next is encoded.

  [[nodiscard]] CudaMark encode(const CodecSpec& spec, std::span<const float> x, Feedback feedback,
                                const Noise& noise, std::span<std::byte> out);
  [[nodiscard]] CudaMark encode_difference(const CodecSpec& spec, std::span<const float> minuend,
                                           std::span<const float> subtrahend, Feedback feedback,
                                           const Noise& noise, std::span<std::byte> out);
  [[nodiscard]] CudaMark encode_quotient(const CodecSpec& spec, std::span<const float> sum, float divisor,
                                         Feedback feedback, const Noise& noise, std::span<std::byte> out);

  // Decoders require bytes that quant::valid accepted while they were in host memory, where bytes from the
  // network arrive. Other bytes give wrong values, but never an access outside the spans.

  void decode(const CodecSpec& spec, std::span<const std::byte> in, std::span<float> out);
  void decode_accumulate(const CodecSpec& spec, std::span<const std::byte> in, float weight,
                         std::span<float> sum);
  void decode_apply(const CodecSpec& spec, std::span<const std::byte> in, const OuterStep& step,
                    std::span<float> theta, std::span<float> velocity, std::span<float> local);

  /// Writes the products of each tile of two vectors (passes.h) to that GPU's memory.
  void products(std::span<const float> x, std::span<const float> y, std::span<Products> tiles);

  /// A mark after all passes so far; for a decoder: its bytes may be overwritten once the mark is done.
  [[nodiscard]] CudaMark mark();

 private:
  friend class CudaMark;
  class Gpu;

  std::unique_ptr<Gpu> gpu_;
};

}  // namespace isthmus::quant
