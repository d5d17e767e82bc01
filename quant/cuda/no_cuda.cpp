#include "isthmus/base/error.h"
#include "isthmus/quant/cuda_passes.h"

// Without CUDA no CudaPasses can be constructed; all other functions exist only to link.
namespace isthmus::quant {
namespace {
[[noreturn]] void refuse() {
  throw Error(ErrorKind::config,
              "passes on a GPU were requested, but this build has no CUDA: build with -DISTHMUS_CUDA=on or "
              "use the CPU");
}
}  // namespace

class CudaPasses::Gpu {};

bool cuda_available() { return false; }

CudaPasses::CudaPasses(const CudaPassesOptions& /*options*/) { refuse(); }
CudaPasses::~CudaPasses() = default;
void CudaPasses::after(void* /*stream*/) { refuse(); }
void CudaPasses::before(void* /*stream*/) { refuse(); }
void* CudaPasses::stream() const { refuse(); }
CudaMark CudaPasses::mark() { refuse(); }

CudaMark CudaPasses::encode(const CodecSpec&, std::span<const float>, Feedback, const Noise&,
                            std::span<std::byte>) {
  refuse();
}
CudaMark CudaPasses::encode_difference(const CodecSpec&, std::span<const float>, std::span<const float>,
                                       Feedback, const Noise&, std::span<std::byte>) {
  refuse();
}
CudaMark CudaPasses::encode_quotient(const CodecSpec&, std::span<const float>, float, Feedback, const Noise&,
                                     std::span<std::byte>) {
  refuse();
}
void CudaPasses::decode(const CodecSpec&, std::span<const std::byte>, std::span<float>) { refuse(); }
void CudaPasses::decode_accumulate(const CodecSpec&, std::span<const std::byte>, float, std::span<float>) {
  refuse();
}
void CudaPasses::decode_apply(const CodecSpec&, std::span<const std::byte>, const OuterStep&,
                              std::span<float>, std::span<float>, std::span<float>) {
  refuse();
}
void CudaPasses::products(std::span<const float>, std::span<const float>, std::span<Products>) { refuse(); }

CudaMark::CudaMark(CudaMark&& other) noexcept : passes_(other.passes_), place_(other.place_) {}
CudaMark::~CudaMark() = default;
bool CudaMark::is_done() const { refuse(); }
std::optional<std::size_t> CudaMark::wait() { refuse(); }
void CudaMark::before(void* /*stream*/) const { refuse(); }

}  // namespace isthmus::quant
