#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/base/hash.h"
#include "isthmus/base/random.h"
#include "isthmus/quant/passes.h"
#include "isthmus/trainer/outer_state.h"
#include "model/selftest_checks.h"

namespace isthmus::app {
namespace {

/// Values of all magnitudes that gradients have, exact on every machine.
std::vector<float> known_values() {
  std::vector<float> values(50'000);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::ldexp(random_unit(selftest_seed, 1, i) - 0.5F,
                           -static_cast<int>(random_bits(selftest_seed, 2, i) % 12));
  return values;
}

quant::CodecSpec spec_of(quant::CodecKind kind, bool stochastic) {
  auto spec = quant::default_spec(kind);
  if (stochastic) spec.rounding = quant::Rounding::stochastic;
  return spec;
}
bool exists(const quant::CodecSpec& spec) { return quant::problem_of(spec).empty(); }

std::vector<std::byte> encoded(const quant::CodecSpec& spec, std::span<const float> values) {
  std::vector<std::byte> bytes(quant::encoded_size(spec, values.size()));
  if (quant::encode(spec, values, {}, {.key = selftest_seed, .first_element = 0}, bytes))
    throw Error(ErrorKind::divergence,
                std::string(to_string(spec.kind)) + " rejects a value that is in range");
  return bytes;
}

/// Parameters after an outer step from `theta` with these bytes.
std::vector<float> applied(const quant::CodecSpec& spec, std::span<const std::byte> bytes,
                           std::vector<float> theta) {
  std::vector<float> velocity(theta.size()), local(theta.size());
  if (!quant::decode_apply(spec, bytes, {}, theta, velocity, local))
    throw Error(ErrorKind::divergence, std::string(to_string(spec.kind)) + " cannot decode its own output");
  return theta;
}

/// Digest of the bytes of every codec and of the parameters after an outer step with them.
Digest codec_digest() {
  const auto values = known_values();
  Hasher hasher;
  for (const auto name : quant::codec_names) {
    for (const bool stochastic : {false, true}) {
      const auto spec = spec_of(quant::codec_kind(name), stochastic);
      if (!exists(spec)) continue;
      const auto bytes = encoded(spec, values);
      const auto theta = applied(spec, bytes, values);
      hasher.update(bytes).update(std::as_bytes(std::span(theta)));
    }
  }
  return hasher.finish();
}

/// The digest on every CPU tried so far.
constexpr std::string_view known_digest = "92140f3b00726cbfafe3be307d8e28d50ae393e130a8f6b3bcb71719fe790c61";

/// The same values on a GPU, encoded and applied there.
class GpuValues {
 public:
  GpuValues(int gpu, const std::vector<float>& values)
      : values_(values), passes_(trainer::make_gpu_passes(gpu)), difference_(floats()), zero_(floats()) {
    passes_->copy(values.data(), difference_.get(), bytes());
    passes_->clear(span(zero_));
  }
  std::vector<std::byte> encoded(const quant::CodecSpec& spec, std::size_t size) {
    const auto room = passes_->device_memory(size);
    std::vector<std::byte> out(size);
    const auto mark =
        passes_->encode_difference(spec, span(difference_), span(zero_), {},
                                   {.key = selftest_seed, .first_element = 0}, {room.get(), size});
    passes_->copy(room.get(), out.data(), size);
    mark->wait();
    passes_->mark()->wait();
    return out;
  }
  std::vector<float> applied(const quant::CodecSpec& spec, const std::vector<std::byte>& encoded) {
    const auto room = passes_->device_memory(encoded.size());
    const auto theta = floats(), velocity = floats(), local = floats();
    passes_->copy(encoded.data(), room.get(), encoded.size());
    passes_->copy(values_.data(), theta.get(), bytes());
    passes_->clear(span(velocity));
    passes_->clear(span(local));
    passes_->decode_apply(spec, {room.get(), encoded.size()}, {}, span(theta), span(velocity), span(local));
    std::vector<float> out(values_.size());
    passes_->copy(theta.get(), out.data(), bytes());
    passes_->mark()->wait();
    return out;
  }

 private:
  using Memory = std::shared_ptr<std::byte>;
  [[nodiscard]] std::size_t bytes() const { return values_.size() * sizeof(float); }
  Memory floats() { return passes_->device_memory(bytes()); }
  std::span<float> span(const Memory& memory) {
    return {reinterpret_cast<float*>(memory.get()), values_.size()};
  }

  const std::vector<float>& values_;
  std::unique_ptr<outer_sync::Passes> passes_;
  Memory difference_, zero_;
};

}  // namespace

Finding check_cpu_codecs() {
  const auto digest = codec_digest().hex();
  return {digest == known_digest, "SHA-256 " + digest.substr(0, 12)};
}

Finding check_gpu_codecs(int gpu) {
  const auto values = known_values();
  GpuValues on_gpu(gpu, values);
  std::string wrong;
  for (const auto name : quant::codec_names) {
    for (const bool stochastic : {false, true}) {
      const auto spec = spec_of(quant::codec_kind(name), stochastic);
      if (!exists(spec)) continue;
      const auto expected = encoded(spec, values);
      const bool same = on_gpu.encoded(spec, expected.size()) == expected &&
                        on_gpu.applied(spec, expected) == applied(spec, expected, values);
      if (!same) wrong += std::string(wrong.empty() ? "" : ", ") + std::string(name);
    }
  }
  return {wrong.empty(), wrong.empty() ? "same as the CPU" : "different: " + wrong};
}

}  // namespace isthmus::app
