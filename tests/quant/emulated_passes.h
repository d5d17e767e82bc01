#pragma once
// The CUDA passes' kernels on the CPU.

#include <memory>

#include "passes_table.h"

namespace isthmus::quant {

/// Uses fewer thread blocks than tiles, so that each has several tiles.
class EmulatedPasses {
 public:
  /// `reversed`: the threads of a thread block take turns from the last to the first.
  explicit EmulatedPasses(bool reversed);
  ~EmulatedPasses();
  EmulatedPasses(const EmulatedPasses&) = delete;
  EmulatedPasses& operator=(const EmulatedPasses&) = delete;

  // As in passes_table.h.
  std::size_t encode(const CodecSpec& spec, const Encoding& e);
  void decode(const CodecSpec& spec, const std::byte* in, float* out, std::size_t elements);
  void accumulate(const CodecSpec& spec, const std::byte* in, float weight, float* sum, std::size_t elements);
  void apply(const CodecSpec& spec, const std::byte* in, const OuterStep& step, float* theta, float* velocity,
             float* local, std::size_t elements);
  /// One result per tile.
  void products(const float* x, const float* y, std::size_t elements, Products* tiles);

 private:
  class Launcher;
  std::unique_ptr<Launcher> launcher_;
};

}  // namespace isthmus::quant
