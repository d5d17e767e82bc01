#include "engine/host_passes.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "isthmus/base/aligned.h"
#include "isthmus/outer_sync/engine/state_digest.h"

namespace isthmus::outer_sync {
namespace {

class Finished final : public Passes::Mark {
 public:
  explicit Finished(std::optional<std::size_t> bad = {}) : bad_(bad) {}
  std::optional<std::size_t> wait() override { return bad_; }

 private:
  std::optional<std::size_t> bad_;
};

}  // namespace

std::shared_ptr<std::byte> HostPasses::device_memory(std::size_t bytes) {
  const auto owner = std::make_shared<AlignedVector<std::byte>>(bytes);
  return {owner, owner->data()};
}

std::shared_ptr<std::byte> HostPasses::host_memory(std::size_t bytes) {
  return HostPasses::device_memory(bytes);
}

void HostPasses::copy(const void* from, void* to, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void HostPasses::clear(std::span<float> values) { std::ranges::fill(values, 0.0F); }

std::unique_ptr<Passes::Mark> HostPasses::encode_difference(
    const quant::CodecSpec& spec, std::span<const float> minuend, std::span<const float> subtrahend,
    quant::Feedback feedback, const quant::Noise& noise, std::span<std::byte> out) {
  return std::make_unique<Finished>(
      quant::encode_difference(spec, minuend, subtrahend, feedback, noise, out));
}

void HostPasses::decode_accumulate(const quant::CodecSpec& spec, std::span<const std::byte> in, float weight,
                                   std::span<float> sum) {
  [[maybe_unused]] const bool decoded = quant::decode_accumulate(spec, in, weight, sum);
  assert(decoded);
}

void HostPasses::decode_apply(const quant::CodecSpec& spec, std::span<const std::byte> in,
                              const quant::OuterStep& step, std::span<float> theta, std::span<float> velocity,
                              std::span<float> local) {
  [[maybe_unused]] const bool decoded = quant::decode_apply(spec, in, step, theta, velocity, local);
  assert(decoded);
}

void HostPasses::products(std::span<const float> x, std::span<const float> y,
                          std::span<quant::Products> tiles) {
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    const auto begin = t * quant::products_tile;
    const auto size = std::min(x.size() - begin, quant::products_tile);
    tiles[t] = {};
    quant::add_products(x.subspan(begin, size), y.subspan(begin, size), tiles[t]);
  }
}

std::uint64_t HostPasses::digest(std::span<const float> values) { return digest_of(values); }

std::unique_ptr<Passes::Mark> HostPasses::mark() { return std::make_unique<Finished>(); }

}  // namespace isthmus::outer_sync
