// Arbitrary bytes for decode_apply: rejected bytes write nothing, accepted bytes give the reference's
// results. Parameters may overflow: the operator chooses lr and momentum, and gradients up to fp32's largest
// value are accepted.

#include "fuzz_support.h"

using namespace isthmus::quant;

namespace {

struct Parameters {
  Values theta, velocity, local;
  friend bool operator==(const Parameters& a, const Parameters& b) {
    return same_bits(a.theta, b.theta) && same_bits(a.velocity, b.velocity) && same_bits(a.local, b.local);
  }
};

/// Skips very large gradients, which only fp32 and bf16 can encode.
void require_finite(const Parameters& p, const Values& gradient) {
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    if (!(std::abs(gradient[i]) < 0x1p126F)) continue;
    require(std::isfinite(p.theta[i]) && std::isfinite(p.velocity[i]),
            "an accepted stream gave a value that is not finite");
    require(p.local.empty() || std::isfinite(p.local[i]),
            "an accepted stream gave a value that is not finite");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Case c;
  if (!c.read(data, size)) return 0;
  const auto bytes = c.encoded();
  const OuterStep step{.nesterov = c.choice % 2 == 0,
                       .merge = c.choice / 2 % 4 == 3 ? Merge::carry : Merge::mix,
                       .alpha = static_cast<float>(c.choice / 2 % 4) / 2};
  const bool merges = c.choice / 8 % 4 != 0;
  const Parameters before{some_values(c.elements, 0.5F), some_values(c.elements, -0.125F),
                          some_values(merges ? c.elements : 0, 2)};
  auto got = before;
  if (!decode_apply(c.spec, bytes, step, got.theta, got.velocity, got.local)) {
    require(got == before, "a rejected stream wrote something");
    return 0;
  }
  Values gradient(c.elements);
  require(decode(c.spec, bytes, gradient), "decode rejects a stream that decode_apply accepts");
  require_finite(got, gradient);
  auto expected = before;
  scalar_passes().apply(c.spec, bytes.data(), step, expected.theta.data(), expected.velocity.data(),
                        merges ? expected.local.data() : nullptr, c.elements);
  require(got == expected, "result differs from the scalar pass's");
  return 0;
}
