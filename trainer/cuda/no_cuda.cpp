#include "cuda/device_passes.h"
#include "cuda/flat_ops.h"
#include "isthmus/base/error.h"

// choose_device never returns `cuda` in a build without it, so these only have to link.
namespace isthmus::trainer::cuda {
namespace {
[[noreturn]] void refuse() { config_error("this build of isthmus has no CUDA"); }
}  // namespace

double gradient_norm(const void*, GradientType, std::uint64_t, double*, double*, void*) { refuse(); }
void adamw(const AdamWStep&, const DecaySegment&, const AdamWPointers&, void*) { refuse(); }
void add_digest(const float*, std::uint64_t, std::uint64_t*, void*) { refuse(); }
void round_to_bf16(const float*, std::uint16_t*, std::uint64_t, void*) { refuse(); }
std::unique_ptr<outer_sync::Passes> make_device_passes(int, void*) { refuse(); }

}  // namespace isthmus::trainer::cuda
