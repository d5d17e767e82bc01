// Arbitrary floats for the encoders: accepted values can be decoded, and the residual is the loss; a refusal
// names an element; all results equal the reference's.

#include "fuzz_support.h"

using namespace isthmus::quant;

namespace {

struct Outcome {
  std::size_t good = 0;
  Encoded bytes;
  Values residual;
};

Outcome by_reference(const Case& c, Encoding e, const Values& residual, bool carries) {
  Outcome out{.bytes = Encoded(encoded_size(c.spec, c.elements)), .residual = residual};
  e.residual = carries ? out.residual.data() : nullptr;
  e.decay = 0.5F;
  e.elements = c.elements;
  e.out = out.bytes.data();
  out.good = scalar_passes().encode(c.spec, e);
  return out;
}

void require_finite(const Values& values, const char* what) {
  for (const float value : values) require(std::isfinite(value), what);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Case c;
  if (!c.read(data, size)) return 0;
  const auto x = c.values();
  const auto y = c.values(5);
  const bool carries = c.choice % 2 == 0;
  const auto way = static_cast<Encoding::Input>(c.choice / 2 % 3);
  const Noise noise{.key = std::uint64_t{c.choice} << 30, .first_element = 64};
  const auto before = c.values(3);
  auto residual = before;
  Encoded bytes(encoded_size(c.spec, c.elements));
  const Feedback feedback{carries ? std::span(residual) : std::span<float>(), 0.5F};
  const auto bad = way == Encoding::Input::plain ? encode(c.spec, x, feedback, noise, bytes)
                   : way == Encoding::Input::difference
                       ? encode_difference(c.spec, x, y, feedback, noise, bytes)
                       : encode_quotient(c.spec, x, 3, feedback, noise, bytes);
  const auto expected = by_reference(
      c, {.input = way, .a = x.data(), .b = y.data(), .divisor = 3, .noise = noise}, before, carries);
  require(bad.value_or(c.elements) == expected.good, "bad element differs from the scalar pass's");
  if (bad) {
    require(*bad < c.elements, "a bad element out of range");
    return 0;
  }
  require(same_bits(bytes, expected.bytes), "bytes differ from the scalar pass's");
  require(same_bits(residual, expected.residual), "residual differs from the scalar pass's");
  Values decoded(c.elements);
  require(decode(c.spec, bytes, decoded), "the decoder refuses what the encoder wrote");
  require_finite(decoded, "a decoded value is not finite");
  if (carries) require_finite(residual, "a residual is not finite");
  return 0;
}
