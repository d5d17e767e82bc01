// Arbitrary bytes for decode_accumulate: rejected bytes write nothing, accepted bytes give the reference's
// finite sums.

#include "fuzz_support.h"

using namespace isthmus::quant;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Case c;
  if (!c.read(data, size)) return 0;
  const auto bytes = c.encoded();
  const float weight = static_cast<float>(c.choice) / 255.0F;
  const auto before = some_values(c.elements, 0.25F);
  auto sum = before;
  if (!decode_accumulate(c.spec, bytes, weight, sum)) {
    require(same_bits(sum, before), "a rejected stream wrote something");
    return 0;
  }
  for (const float value : sum)
    require(std::isfinite(value), "an accepted stream gave a value that is not finite");
  auto expected = before;
  scalar_passes().accumulate(c.spec, bytes.data(), weight, expected.data(), c.elements);
  require(same_bits(sum, expected), "result differs from the scalar pass's");
  return 0;
}
