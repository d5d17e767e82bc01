// Arbitrary bytes for decode: refused ones write nothing, others give the reference's finite values.

#include "fuzz_support.h"

using namespace isthmus::quant;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Case c;
  if (!c.read(data, size)) return 0;
  const auto bytes = c.encoded();
  const auto before = some_values(c.elements, 0.5F);
  auto out = before;
  const bool accepted = decode(c.spec, bytes, out);
  require(accepted == valid(c.spec, bytes, c.elements), "decode and valid disagree");
  if (!accepted) {
    require(same_bits(out, before), "a refused stream wrote something");
    return 0;
  }
  for (const float value : out) require(std::isfinite(value), "an accepted stream gave what is not finite");
  Values expected(c.elements);
  scalar_passes().decode(c.spec, bytes.data(), expected.data(), c.elements);
  require(same_bits(out, expected), "not what the scalar pass gives");
  return 0;
}
