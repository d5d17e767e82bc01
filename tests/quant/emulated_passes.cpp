#include "emulated_passes.h"

#include <bit>
#include <cmath>
#include <type_traits>

#include "emulated_gpu.h"
#include "formats.h"

namespace isthmus::quant {
namespace {
#include "scalar_lanes-inl.h"
// must follow scalar_lanes-inl.h
#include "arithmetic-inl.h"
// must follow both
#include "cuda/kernels-inl.h"
#include "cuda/products-inl.h"
}  // namespace

class EmulatedPasses::Launcher : public emulated::Launcher {
  using emulated::Launcher::Launcher;
};

EmulatedPasses::EmulatedPasses(bool reversed) : launcher_(std::make_unique<Launcher>(reversed)) {}
EmulatedPasses::~EmulatedPasses() = default;

std::size_t EmulatedPasses::encode(const CodecSpec& spec, const Encoding& e) {
  unsigned long long first_bad = e.elements;
  launch_encode(spec, e, &first_bad, *launcher_);
  return first_bad;
}
void EmulatedPasses::decode(const CodecSpec& spec, const std::byte* in, float* out, std::size_t elements) {
  launch_decode(spec, in, elements, CopyTo{out}, *launcher_);
}
void EmulatedPasses::accumulate(const CodecSpec& spec, const std::byte* in, float weight, float* sum,
                                std::size_t elements) {
  launch_decode(spec, in, elements, AddTo{weight, sum}, *launcher_);
}
void EmulatedPasses::apply(const CodecSpec& spec, const std::byte* in, const OuterStep& step, float* theta,
                           float* velocity, float* local, std::size_t elements) {
  launch_decode(spec, in, elements, ApplyTo{step, theta, velocity, local}, *launcher_);
}
void EmulatedPasses::products(const float* x, const float* y, std::size_t elements, Products* tiles) {
  (*launcher_)(products_kernel, x, y, elements, tiles);
}

}  // namespace isthmus::quant
